from __future__ import annotations

import copy
import functools
import math
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import textbook
from cretta import Adapter, CollapseWarning, Facts, Guard, Objective, SourceBuffer, adapt
from cretta.errors import BatchError, OptionError
from cretta.functional import energy
from cretta.monitor.guard import GuardState

CLASSES = 4
SIDE = 8
FORWARDS: list[int] = []
"""Sizes of all batches that passed any copy of the network: copies share this, it is no attribute."""


def count(layer: nn.Module, inputs: tuple[Tensor, ...]) -> None:
    if not textbook.in_verification():
        FORWARDS.append(len(inputs[0]))


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(3, 8, 3, padding=1),
            nn.BatchNorm2d(8),
            nn.ReLU(),
            nn.Conv2d(8, 12, 3, stride=2),
            nn.BatchNorm2d(12),
        )
        self.head = nn.Linear(12 * 9, CLASSES)
        self.head.register_forward_pre_hook(count)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.body(x).relu().flatten(1))  # type: ignore[no-any-return]


def draw(labels: Tensor, seed: int) -> Tensor:
    """A pattern for each class, under noise."""
    generator = torch.Generator().manual_seed(1000 + seed)
    patterns = torch.rand(CLASSES, 3, SIDE, SIDE, generator=torch.Generator().manual_seed(0))
    noise = torch.randn(len(labels), 3, SIDE, SIDE, generator=generator)
    return (patterns[labels] + 0.3 * noise).clamp(0, 1)


def mixed(size: int = 48) -> Tensor:
    return torch.arange(size) % CLASSES


def unadapted(model: Adapter[Any], x: Tensor) -> Tensor:
    """The source model under the statistics in use."""
    with torch.no_grad():
        return model.frozen(model.statistics)(x)


def stream(batches: int, size: int = 48, *, start: int = 0, only: int | None = None) -> list[Tensor]:
    labels = mixed(size) if only is None else torch.full((size,), only)
    return [draw(labels, seed) for seed in range(start, start + batches)]


@functools.cache
def trained() -> Net:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        net = Net()
    optimizer = torch.optim.Adam(net.parameters(), lr=5e-3)
    for seed in range(500, 560):
        optimizer.zero_grad()
        F.cross_entropy(net(draw(mixed(), seed)), mixed(), label_smoothing=0.02).backward()
        optimizer.step()
    net.eval()
    with torch.no_grad():
        assert (net(draw(mixed(), 999)).argmax(-1) == mixed()).float().mean() > 0.9
    FORWARDS.clear()
    return net


@functools.cache
def untrained() -> Net:
    with torch.random.fork_rng():
        torch.manual_seed(1)
        return Net().eval()


@functools.cache
def loud() -> Net:
    """The trained network with energies spread over several nats."""
    net = copy.deepcopy(trained())
    net.head.weight.data.mul_(5)
    return net


@functools.cache
def buffer() -> SourceBuffer:
    return SourceBuffer(draw(mixed(64), 77), mixed(64), augment="none")


class Patient(Adapter):
    """Learns quietly until told to be ill."""

    name = "patient"
    facts = Facts(updates="norm affine", statistics="batch", logits="after")
    ill = False

    def objective(self, x: Tensor) -> Objective:
        logits = self.model(x)
        return Objective(self.aim(logits), logits)

    def aim(self, logits: Tensor) -> Tensor:
        return F.cross_entropy(logits, torch.zeros(len(logits), dtype=torch.long))

    def update(self, x: Tensor, objective: Objective) -> None:
        super().update(x, objective)
        if self.ill:
            self.sicken(x)

    def sicken(self, x: Tensor) -> None:
        """Everything becomes class 0."""
        assert self.state.optimizer is not None
        for group in self.state.optimizer.param_groups:
            group["lr"] = 0.5
        for _ in range(12):
            with torch.enable_grad():
                super().update(x, self.objective(x))
        for group in self.state.optimizer.param_groups:
            group["lr"] = self.options.lr


class Poisoned(Patient):
    name = "poisoned"

    def sicken(self, x: Tensor) -> None:
        self.learnable.flat[0].data[3] = float("nan")


class Deepening(Patient):
    """Lowers the energies of everything alike, so that the classes stay mixed."""

    name = "deepening"

    def aim(self, logits: Tensor) -> Tensor:
        mix = logits.softmax(-1).mean(0)
        return energy(logits).mean() + 50 * (mix * mix.log()).sum()


class Raising(Deepening):
    name = "raising"

    def aim(self, logits: Tensor) -> Tensor:
        mix = logits.softmax(-1).mean(0)
        return -energy(logits).mean() + 50 * (mix * mix.log()).sum()


def prompt(action: str = "warn", **options: Any) -> Guard:
    """A guard that judges each batch by itself, by classes and energies only."""
    settings: dict[str, Any] = {"action": action, "window": 1, "margin": 1.0, "flips": 1.0, **options}
    return Guard(**settings)


def patient(
    kind: type[Patient] = Patient, *, net: nn.Module | None = None, lr: float = 1e-5, **options: Any
) -> Patient:
    return kind(trained() if net is None else net, lr=lr, **options)


def same(a: dict[str, Tensor], b: dict[str, Tensor]) -> bool:
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)


def mix_entropy(logits: Tensor) -> float:
    return float(torch.special.entr(logits.softmax(-1).mean(0)).sum())


def run_on(model: Adapter[Any], batches: Sequence[Tensor]) -> list[tuple[str, Tensor]]:
    found = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", CollapseWarning)
        for x in batches:
            logits = model(x)
            found.append((model.last.guard, logits))
    return found


# Off, or silent


@pytest.mark.parametrize("method", ["tent", "cretta"])
def test_off_by_default_and_one_forward_each_of_both_references_when_on(method: str) -> None:
    counts = []
    for guard in (None, "warn"):
        model = adapt(trained(), method, buffer=buffer(), guard=guard)
        for x in stream(2):
            model(x)
        FORWARDS.clear()
        model(stream(1, start=9)[0])
        counts.append(list(FORWARDS))
        assert model.last.guard == ""
    assert len(counts[0]) == {"tent": 1, "cretta": 4}[method]
    # φ with the statistics of training, which CreTTA computes anyhow, and with those in use.
    assert counts[1] == [*counts[0], *[48] * {"tent": 2, "cretta": 1}[method]]
    assert adapt(trained(), method, buffer=buffer()).options.guard is None


@pytest.mark.parametrize("method", ["source", "bn_adapt"])
def test_what_does_not_learn_takes_no_guard(method: str) -> None:
    for guard in ("warn", Guard(action="rollback")):
        with pytest.raises(OptionError, match=rf"guard='(warn|rollback)'.*{method} learns nothing.*Use guard=None"):
            adapt(trained(), method, guard=guard)
    assert adapt(trained(), method, guard=None).options.guard is None


@pytest.mark.parametrize("predict", ["before", "after"])
@pytest.mark.parametrize("method", ["tent", "cretta"])
def test_watching_changes_nothing_in_a_healthy_run(method: str, predict: str) -> None:
    plain, watched = (
        adapt(trained(), method, buffer=buffer(), predict=predict, guard=guard) for guard in (None, "rollback")
    )
    for x in stream(4):
        assert torch.equal(plain(x), watched(x))
    assert same(plain.state.snapshot(), watched.state.snapshot())


@pytest.mark.parametrize("net", [trained, untrained])
@pytest.mark.parametrize("only", [None, 0, 2], ids=["mixed", "class 0", "class 2"])
@pytest.mark.parametrize("statistics", ["batch", "running", "mixture", "moving"])
@pytest.mark.parametrize("method", ["tent", "cretta"])
def test_healthy_runs_raise_no_alarm(method: str, statistics: str, only: int | None, net: Any) -> None:
    model = adapt(net(), method, buffer=buffer(), statistics=statistics, guard="warn")
    for x in stream(12, only=only):
        model(x)  # a CollapseWarning would be an error here
        assert model.last.guard == ""


@pytest.mark.parametrize("size", [1, 2, 5])
@pytest.mark.parametrize("method", ["tent", "cretta"])
def test_small_batches_raise_no_alarm(method: str, size: int) -> None:
    model = adapt(trained(), method, buffer=buffer(), statistics="running", guard="warn")
    for x in stream(24, size):
        model(x)
        assert model.last.guard == ""


@pytest.mark.parametrize("method", ["tent", "cretta"])
def test_a_camera_that_stands_still_raises_no_alarm(method: str) -> None:
    model = adapt(trained(), method, buffer=buffer(), statistics="running", guard="warn")
    still = stream(1, 1)[0].repeat(8, 1, 1, 1)
    for _ in range(6):
        model(still)
        assert model.last.guard == ""


class Idle(Patient):
    name = "idle"

    def update(self, x: Tensor, objective: Objective) -> None:
        """Take no step."""


@pytest.mark.parametrize("predict", ["before", "after"])
@pytest.mark.parametrize("statistics", ["batch", "running", "mixture", "moving"])
def test_a_model_that_learned_nothing_equals_the_yardstick(statistics: str, predict: str) -> None:
    strict = Guard(classes=0.99999, drift=1e-4)
    model = Idle(trained(), statistics=statistics, predict=predict, batch_weight=0.5, guard=strict)
    for x in stream(5):
        model(x * 0.5)
        assert model.last.guard == ""


# Alarms


def test_warn_warns_and_leaves_the_model() -> None:
    model, plain = patient(guard=prompt()), patient()
    for x in stream(3):
        assert torch.equal(model(x), plain(x))
    model.ill = plain.ill = True
    x = stream(1, start=3)[0]
    with pytest.warns(CollapseWarning, match=r"batch 4: .*predicted classes fell to \d+%, below 80%.*nothing done"):
        found = model(x)
    assert torch.equal(found, plain(x))
    assert same(model.state.snapshot(), plain.state.snapshot())
    assert set(found.argmax(-1).tolist()) == {0}
    assert "fell to" in model.last.guard
    assert "nothing done" in model.last.guard
    assert model.last.adapted


def test_the_warning_points_to_the_callers_line() -> None:
    model = patient(guard=prompt())
    model.ill = True
    with pytest.warns(CollapseWarning) as caught:
        model(stream(1)[0])
    assert [Path(w.filename).name for w in caught] == [Path(__file__).name]


@pytest.mark.parametrize("statistics", ["batch", "mixture", "moving"])
def test_rollback_returns_to_the_last_healthy_state(statistics: str) -> None:
    model = patient(statistics=statistics, lr=1e-4, guard=prompt("rollback"))
    initial = model.state.snapshot()
    for x in stream(3):
        model(x)
    healthy = model.state.snapshot()
    assert not same(initial, healthy)
    model.ill = True
    x = stream(1, start=3)[0]
    with pytest.warns(CollapseWarning, match="rolled back to the last healthy state"):
        found = model(x)
    assert same(model.state.snapshot(), healthy)
    assert torch.equal(found, model.predict(x))
    assert bool(torch.isfinite(found).all())
    assert mix_entropy(found) > 0.8 * mix_entropy(unadapted(model, x))
    assert model.last.energy == pytest.approx(float(energy(found).mean()))
    assert "rolled back to the last healthy state" in model.last.guard


def test_rollback_does_not_return_to_a_state_that_was_already_ill() -> None:
    """Averages take a while to notice; what was saved in that while is no healthy state."""
    model = patient(lr=1e-4, guard="rollback")
    for x in stream(6):
        model(x)
    model.ill = True
    batches = stream(20, start=6)
    answers = run_on(model, batches)
    first = next(i for i, (text, _) in enumerate(answers) if text)
    assert "rolled back" in answers[first][0]
    assert mix_entropy(answers[first][1]) > 0.8 * mix_entropy(unadapted(model, batches[first]))


def test_a_second_alarm_in_a_row_resets_to_source() -> None:
    model = patient(lr=1e-4, guard=prompt("rollback"))
    initial = model.state.snapshot()
    batches = stream(12)
    for x in batches[:3]:
        model(x)
    healthy = model.state.snapshot()
    model.ill = True
    with pytest.warns(CollapseWarning, match="rolled back"):
        model(batches[3])
    assert same(model.state.snapshot(), healthy)
    with pytest.warns(CollapseWarning, match="reset to the source model"):
        found = model(batches[4])
    assert same(model.state.snapshot(), initial)
    torch.testing.assert_close(found, unadapted(model, batches[4]))
    with pytest.warns(CollapseWarning, match="reset, and the source model answers the next 1 images"):
        found = model(batches[5])
    assert same(model.state.snapshot(), initial)
    torch.testing.assert_close(found, model.frozen("running")(batches[5]))
    # Once well again, the next illness is a first one.
    model.ill = False
    torch.testing.assert_close(model(batches[6]), model.frozen("running")(batches[6]))
    assert same(model.state.snapshot(), initial)
    assert model.last.reason == "answered by the source model after an alarm"
    for x in batches[7:9]:
        model(x)
        assert model.last.guard == ""
    healthy = model.state.snapshot()
    model.ill = True
    with pytest.warns(CollapseWarning, match="rolled back"):
        model(batches[9])
    assert same(model.state.snapshot(), healthy)


def test_an_alarm_before_any_healthy_batch_resets() -> None:
    model = patient(guard=prompt("rollback"))
    initial = model.state.snapshot()
    model.ill = True
    with pytest.warns(CollapseWarning, match="reset to the source model"):
        model(stream(1)[0])
    assert same(model.state.snapshot(), initial)


@pytest.mark.parametrize("action", ["rollback", "reset"])
def test_after_an_alarm_the_averages_start_anew(action: str) -> None:
    """The illness is undone; its traces in the averages must not sound the next alarm."""
    model = patient(lr=1e-4, guard=Guard(action=action, window=1000))
    model.ill = True
    assert "reset to the source" in run_on(model, stream(1))[0][0]
    model.ill = False
    assert [text for text, _ in run_on(model, stream(5, start=1))] == [""] * 5


def test_reset_goes_straight_to_the_source() -> None:
    model = patient(lr=1e-4, guard=prompt("reset"))
    initial = model.state.snapshot()
    for x in stream(3):
        model(x)
    model.ill = True
    x = stream(1, start=3)[0]
    with pytest.warns(CollapseWarning, match="reset to the source model"):
        found = model(x)
    assert same(model.state.snapshot(), initial)
    torch.testing.assert_close(found, unadapted(model, x))
    assert "reset to the source model" in model.last.guard


@pytest.mark.parametrize("kind", [Patient, Poisoned])
def test_a_rolled_back_state_is_healthy_where_logits_come_from_before_the_update(kind: type[Patient]) -> None:
    """The update that makes ill shows one batch later; the state it left must not pass for healthy."""
    model = patient(kind, lr=1e-4, predict="before", guard=prompt("rollback"))
    batches = stream(6)
    for x in batches[:3]:
        model(x)
    noticed = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", CollapseWarning)
        for x, model.ill in ((batches[3], True), (batches[4], False)):
            found = model(x)
            noticed.append(model.last.guard)
    assert any("rolled back" in text for text in noticed)
    for logits in (found, model.predict(batches[5])):
        assert bool(torch.isfinite(logits).all())
        assert mix_entropy(logits) > 0.8 * mix_entropy(unadapted(model, batches[5]))


@pytest.mark.parametrize("action", ["rollback", "reset"])
@pytest.mark.parametrize("lr", [5.0, 1e30])
def test_a_prompt_guard_never_answers_nonsense(lr: float, action: str) -> None:
    """TENT with learning rates that ruin it in one update."""
    model = adapt(trained(), "tent", lr=lr, guard=prompt(action))
    batches = stream(6)
    answers = run_on(model, batches)
    assert any(text for text, _ in answers)
    for x, (_, found) in zip(batches, answers, strict=True):
        assert bool(torch.isfinite(found).all())
        assert mix_entropy(found) > 0.5 * mix_entropy(unadapted(model, x))


@pytest.mark.parametrize("method", ["tent", "cretta"])
def test_an_absurd_learning_rate_is_noticed(method: str) -> None:
    model = adapt(trained(), method, buffer=buffer(), lr=5.0, guard="warn")
    assert any(text for text, _ in run_on(model, stream(10)))


@pytest.mark.parametrize(("kind", "most", "sign"), [(Deepening, 5.0, "-"), (Raising, 2.0, r"\+")])
def test_drifting_energies_are_noticed(kind: type[Patient], most: float, sign: str) -> None:
    model = patient(kind, net=loud(), guard=prompt(drift=most))
    for x in stream(2):
        model(x)
    model.ill = True
    x = stream(1, start=2)[0]
    message = rf"energies drifted by {sign}\d+\.\d standard deviations, more than {most:g};"
    with pytest.warns(CollapseWarning, match=message):
        found = model(x)
    assert mix_entropy(found) > 0.8 * mix_entropy(unadapted(model, x))
    moved = float(energy(found).mean() - energy(unadapted(model, x)).mean())
    assert (moved < 0) == (sign == "-")


@pytest.mark.parametrize("guard", [None, prompt("warn"), prompt("rollback"), prompt("reset")])
def test_an_update_that_ruins_the_logits_is_undone(guard: Guard | None) -> None:
    """Where the logits returned are those after the update, nothing is left to notice."""
    model, undisturbed = (patient(Poisoned, guard=guard) for _ in range(2))
    batches = stream(4)
    for each in (model, undisturbed):
        each(batches[0])
    before, predicted = model.state.snapshot(), model.predict(batches[1])
    model.ill = True
    assert torch.equal(model(batches[1]), predicted)
    assert (model.last.adapted, model.last.skipped, model.last.guard) == (False, True, "")
    assert "the logits after the update are not finite" in model.last.reason
    assert same(model.state.snapshot(), before)
    model.ill = False
    for x in batches[2:]:
        assert torch.equal(model(x), undisturbed(x))
        assert model.last.guard == ""


def ruined(action: str) -> Patient:
    """Logits returned are those before the update: what an update ruined shows with the next batch."""
    model = patient(Poisoned, predict="before", guard=prompt(action))
    for x, model.ill in zip(stream(2), (False, True), strict=True):
        model(x)
    model.ill = False
    return model


@pytest.mark.parametrize("action", ["rollback", "reset"])
def test_predictions_that_are_not_finite_are_noticed(action: str) -> None:
    model, (first, *others) = ruined(action), stream(3, start=2)
    with pytest.warns(CollapseWarning, match="predictions are not finite"):
        found = model(first)
    assert bool(torch.isfinite(found).all())
    for x in others:
        assert bool(torch.isfinite(model(x)).all())
        assert model.last.guard == ""


@pytest.mark.filterwarnings("ignore::cretta.CollapseWarning")
def test_predictions_that_are_not_finite_are_never_returned() -> None:
    model, (x,) = ruined("warn"), stream(1, start=2)
    for use in (model, model.predict):
        with pytest.raises(
            BatchError, match=r"the logits are not finite.*If every batch fails like this, call reset\(\)"
        ):
            use(x)
    model.reset()
    assert bool(torch.isfinite(model(x)).all())


# Settings


def numbers_by_hand(logits: Sequence[Tensor], references: Sequence[Tensor]) -> tuple[float, float]:
    """Share of classes kept and drift of one batch, or of two with weights one half each."""
    mixes = [torch.stack([z.softmax(-1).mean(0) for z in part]).double().mean(0) for part in (logits, references)]
    kept = float((torch.special.entr(mixes[0]).sum() - torch.special.entr(mixes[1]).sum()).exp())
    e, r = (torch.stack([energy(z) for z in part]).double() for part in (logits, references))
    return kept, float((e.mean() - r.mean()) / max(1.0, float(r.std(correction=0))))


@pytest.mark.parametrize("batches", [1, 2])
def test_thresholds_are_met_exactly(batches: int) -> None:
    """Just this side of the numbers computed here there is no alarm, just that side there is one."""
    xs = stream(batches, 48)  # two batches of 48 in a window of 96: averages of one half each
    plain = patient(net=loud(), lr=0.5)
    logits = [plain(x) for x in xs]
    kept, drift = numbers_by_hand(logits, [unadapted(plain, x) for x in xs])
    assert kept < 0.999
    assert abs(drift) > 0.01

    def alarm(**options: Any) -> str:
        model = patient(net=loud(), lr=0.5, guard=prompt(window=96, patience=9, **options))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", CollapseWarning)
            for x in xs:
                model(x)
        return model.last.guard

    assert alarm(classes=kept - 1e-4, drift=1e6) == ""
    assert "effective number" in alarm(classes=kept + 1e-4, drift=1e6)
    assert alarm(classes=1e-6, drift=abs(drift) * 1.001) == ""
    assert "drifted" in alarm(classes=1e-6, drift=abs(drift) * 0.999)


def test_every_looks_at_one_batch_in_so_many() -> None:
    model = patient(guard=prompt(every=3))
    model.ill = True
    noticed, forwards = [], []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", CollapseWarning)
        for x in stream(7):
            model(x)
            noticed.append(bool(model.last.guard))
    assert noticed == [True, False, False, True, False, False, True]

    model = patient(guard=Guard(every=3))
    for x in stream(7):
        FORWARDS.clear()
        model(x)
        forwards.append(len(FORWARDS))
    assert forwards == [4, 2, 2, 4, 2, 2, 4]


@pytest.mark.parametrize("guard", ["explode", "", "Warn", 3, True, False, 0.5, ["warn"], {"action": "warn"}])
def test_wrong_guards(guard: Any) -> None:
    with pytest.raises(OptionError, match=r"guard=.*'warn', 'fallback', 'rollback', 'reset', a cretta\.Guard or None"):
        adapt(trained(), "tent", guard=guard)


@pytest.mark.parametrize(
    "wrong",
    [
        {"action": "explode"},
        {"action": None},
        {"classes": 0},
        {"classes": 1.01},
        {"classes": float("nan")},
        {"classes": "0.5"},
        {"drift": 0},
        {"drift": -1},
        {"drift": float("inf")},
        {"drift": True},
        {"margin": -0.1},
        {"flips": 0},
        {"patience": 0},
        {"window": 0},
        {"window": 1.5},
        {"every": 0},
        {"every": -3},
        {"every": True},
    ],
)
def test_wrong_settings(wrong: dict[str, Any]) -> None:
    name = next(iter(wrong))
    with pytest.raises(OptionError, match=rf"^{name}=.*expected"):
        Guard(**wrong)


def test_a_name_is_short_for_a_guard() -> None:
    for action in ("warn", "fallback", "rollback", "reset"):
        assert adapt(trained(), "tent", guard=action).options.guard == Guard(action=action)


# Lifetime


def resumed(model: Patient, path: Path, **options: Any) -> Patient:
    model.save(path)
    other = patient(type(model), net=copy.deepcopy(trained()), **options)
    other.restore(path)
    return other


def test_the_healthy_state_survives_saving(tmp_path: Path) -> None:
    model = patient(lr=1e-4, guard=prompt("rollback"))
    run_on(model, stream(3))
    other = resumed(model, tmp_path / "state", lr=1e-4, guard=prompt("rollback"))
    healthy = model.state.snapshot()
    assert same(other.state.snapshot(), healthy)
    other.ill = True
    assert "rolled back" in run_on(other, stream(1, start=3))[0][0]
    assert same(other.state.snapshot(), healthy)


def test_a_first_alarm_is_remembered_over_saving(tmp_path: Path) -> None:
    model = patient(lr=1e-4, guard=prompt("rollback"))
    run_on(model, stream(3))
    model.ill = True
    run_on(model, stream(1, start=3))
    other = resumed(model, tmp_path / "state", lr=1e-4, guard=prompt("rollback"))
    other.ill = True
    assert "reset to the source" in run_on(other, stream(1, start=4))[0][0]


def test_averages_and_turns_survive_saving(tmp_path: Path) -> None:
    """Thresholds so tight that every batch looked at is reported, with its numbers."""
    guard = Guard(drift=1e-9, every=2)
    model = patient(lr=0.01, guard=guard)
    run_on(model, stream(3))
    other = resumed(model, tmp_path / "state", lr=0.01, guard=guard)
    rest = stream(6, start=3)
    for (text, logits), (other_text, other_logits) in zip(run_on(model, rest), run_on(other, rest), strict=True):
        assert text == other_text
        assert torch.equal(logits, other_logits)
    assert [bool(text) for text, _ in run_on(model, stream(4, start=9))] == [False, True, False, True]


def test_states_saved_with_and_without_a_guard_can_be_exchanged(tmp_path: Path) -> None:
    for first, second in ((None, "rollback"), ("rollback", None)):
        model = patient(lr=1e-4, guard=first)
        run_on(model, stream(3))
        with pytest.warns(UserWarning, match="guard"):
            other = resumed(model, tmp_path / "state", lr=1e-4, guard=second)
        assert same(model.state.snapshot(), other.state.snapshot())
        assert torch.equal(run_on(model, stream(1, start=3))[0][1], run_on(other, stream(1, start=3))[0][1])


def test_reset_forgets_the_healthy_state() -> None:
    model = patient(lr=1e-4, guard=prompt("rollback"))
    initial = model.state.snapshot()
    run_on(model, stream(3))
    model.reset()
    model.ill = True
    assert "reset to the source" in run_on(model, stream(1, start=3))[0][0]
    assert same(model.state.snapshot(), initial)


def test_predicting_is_not_watched() -> None:
    model = patient(guard=prompt())
    model.ill = True
    run_on(model, stream(1))
    FORWARDS.clear()
    model.predict(stream(1)[0])  # collapsed, and nothing is said
    assert len(FORWARDS) == 1


def test_a_warning_made_an_error_leaves_a_usable_model() -> None:
    model = patient(lr=1e-4, guard=prompt("rollback"))
    run_on(model, stream(2))
    healthy = model.state.snapshot()
    model.ill = True
    with warnings.catch_warnings():
        warnings.simplefilter("error", CollapseWarning)
        with pytest.raises(CollapseWarning, match="rolled back"):
            model(stream(1, start=2)[0])
    assert same(model.state.snapshot(), healthy)
    model.ill = False
    model(stream(1, start=3)[0])
    assert model.last.guard == ""


def alarms(patience: int) -> list[bool]:
    """Eight healthy batches of 48, then four of a model that collapsed; whether each of these raises an alarm."""
    guard = prompt(window=8 * 48, classes=0.5, drift=1e6, patience=patience)
    model = patient(guard=guard, predict="after")
    batches = stream(12)
    for x in batches[:8]:
        model(x)
        assert model.last.guard == ""
    model.ill = True
    return [text != "" for text, _ in run_on(model, batches[8:])]


def test_patience_is_how_many_ill_batches_in_a_row_are_enough() -> None:
    """However many healthy ones the window's average remembers."""
    assert alarms(patience=1) == [True, True, True, True]
    assert alarms(patience=2) == [False, True, True, True]
    assert alarms(patience=9) == [False, False, False, False]


# The comparison with the source model


def confident() -> tuple[Tensor, Tensor]:
    """Logits of 20 images of 4 classes, by a model that is sure of each; and of the same model, for wrong classes."""
    right = 10 * torch.eye(4).repeat(5, 1)
    return right, right.roll(1, 1)


def judged(logits: Tensor, same: Tensor, running: Tensor, **options: Any) -> str:
    settings: dict[str, Any] = {"margin": 1.0, "flips": 1.0, "classes": 1e-6, "drift": 1e6, **options}
    return GuardState(Guard(**settings)).check(logits, same, running, {})


def test_signals_by_hand() -> None:
    right, wrong = confident()
    logits = torch.cat([right[:15], wrong[15:]])  # a quarter of the answers contradicts
    p = math.exp(10) / (math.exp(10) + 3)
    harm = 2 * p - 1 - 0.75
    assert judged(logits, logits, right, margin=harm + 1e-4) == ""
    assert "agree with the source model for 75%" in judged(logits, logits, right, margin=harm - 1e-4)
    lost = 0.25 * (p - (1 - p) / 3)
    assert judged(logits, right, logits, flips=lost + 1e-4) == ""
    assert "lose 25% by the source model" in judged(logits, right, logits, flips=lost - 1e-4)
    few = GuardState(Guard())
    assert few.check(wrong[:15], right[:15], right[:15], {}) == ""  # too few images to judge
    assert few.check(wrong[15:], right[15:], right[15:], {}) != ""


class ColorNet(nn.Module):
    """Sees the color of an image only, which the statistics of a batch of one color remove."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(3, 16, 1), nn.BatchNorm2d(16), nn.ReLU())
        self.head = nn.Linear(16, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.body(x).mean((2, 3)))  # type: ignore[no-any-return]


def colored(labels: Tensor, seed: int) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    colors = torch.tensor([[0.8, 0.2, 0.2], [0.2, 0.8, 0.2], [0.2, 0.2, 0.8], [0.8, 0.8, 0.8]])
    noise = torch.randn(len(labels), 3, 4, 4, generator=generator)
    return colors[labels].view(-1, 3, 1, 1) + 0.2 * noise


@functools.cache
def trained_on_colors() -> ColorNet:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        net = ColorNet()
    optimizer = torch.optim.Adam(net.parameters(), lr=5e-2)
    for seed in range(60):
        optimizer.zero_grad()
        F.cross_entropy(net(colored(mixed(), seed)), mixed()).backward()
        optimizer.step()
    return net.eval()


def one_color_each(batches: int, size: int = 48) -> list[Tensor]:
    return [
        x for c in range(CLASSES) for seed in range(batches) for x in colored(torch.full((48,), c), seed).split(size)
    ]


@pytest.mark.parametrize("size", [1, 4, 48])
@pytest.mark.parametrize("statistics", ["batch", "auto"])
def test_batches_of_one_class_do_no_harm_under_auto_and_are_noticed_under_batch(statistics: str, size: int) -> None:
    """The yardstick is the source model with the statistics of training."""
    model = adapt(trained_on_colors(), "tent", statistics=statistics, guard="warn")
    answers = run_on(model, one_color_each(1, size))
    labels = torch.arange(CLASSES).repeat_interleave(48)
    accuracy = float((torch.cat([z for _, z in answers]).argmax(-1) == labels).float().mean())
    if statistics == "auto":
        assert accuracy > 0.9
        assert not any(text for text, _ in answers)
    else:
        assert accuracy < 0.6
        assert any("agree with the source model" in text for text, _ in answers)


def test_fallback_answers_by_the_source_model_and_learns_nothing_meanwhile() -> None:
    model = patient(lr=1e-4, guard=Guard(action="fallback", window=96, patience=1))
    batches = stream(8)
    for x in batches[:2]:
        model(x)
    before = model.state.snapshot()
    model.ill = True
    with pytest.warns(CollapseWarning, match="the source model answers the next 96 images"):
        found = model(batches[2])
    model.ill = False
    torch.testing.assert_close(found, model.frozen("running")(batches[2]))
    for x in batches[3:5]:
        torch.testing.assert_close(model(x), model.frozen("running")(x))
        assert same(model.state.snapshot(), before)  # the step that made ill is undone, and none is taken
    model(batches[5])
    assert model.last.adapted
    assert model.last.guard == ""


def test_during_a_pause_the_source_model_answers_what_is_only_predicted() -> None:
    model = patient(lr=1e-4, guard=Guard(action="fallback", window=96, patience=1))
    batches = stream(4)
    model(batches[0])
    model.ill = True
    with pytest.warns(CollapseWarning, match="the source model answers the next 96 images"):
        model(batches[1])
    torch.testing.assert_close(model.predict(batches[2]), model.frozen("running")(batches[2]))
    model.ill = False
    for x in batches[2:]:
        model(x)  # the end of the pause
    own = model.predict(batches[0])
    assert not torch.equal(own, model.frozen("running")(batches[0]))


@pytest.mark.parametrize("action", ["fallback", "rollback", "reset"])
def test_where_going_back_does_not_help_the_source_model_answers(action: str) -> None:
    """Batch statistics of one class at a time are harmful whatever was learned."""
    guard = Guard(action=action, patience=1, window=96)
    model = adapt(trained_on_colors(), "tent", lr=1e-6, statistics="batch", guard=guard)
    batches = one_color_each(3)
    answers = run_on(model, batches)
    assert "the source model answers the next 96 images" in answers[0][0]
    for x, (_, found) in zip(batches, answers, strict=True):
        torch.testing.assert_close(found, model.frozen("running")(x))
    # Each pause is twice as long as the one before.
    assert [number for number, (text, _) in enumerate(answers) if text] == [0, 3, 8]


def test_a_pause_survives_saving(tmp_path: Path) -> None:
    guard = Guard(action="fallback", patience=1, window=96)
    model, other = (adapt(trained_on_colors(), "tent", guard=guard) for _ in range(2))
    batches = one_color_each(1)
    run_on(model, batches[:1])
    model.save(tmp_path / "state")
    other.restore(tmp_path / "state")
    for x in batches[1:3]:
        assert torch.equal(model(x), other(x))
        assert other.last.reason == "answered by the source model after an alarm"


def test_batches_from_which_nothing_can_be_learned_are_reported_once_until_one_is_learned_from() -> None:
    model = adapt(trained_on_colors(), "tent", statistics="auto", guard=Guard(action="rollback", unusable=3))
    one_class, healthy = one_color_each(5)[:5], colored(mixed(), 7)
    report = "nothing was learned from 3 batches in a row: too few images or classes to learn from"
    assert [text for text, _ in run_on(model, [*one_class, healthy, *one_class])] == [
        "", "", report, "", "", "", "", "", report, "", "",
    ]  # fmt: skip


def test_reported_batches_change_nothing() -> None:
    guarded = adapt(trained_on_colors(), "tent", statistics="auto", guard=Guard(action="reset", unusable=2))
    plain = adapt(trained_on_colors(), "tent", statistics="auto")
    for x in [colored(mixed(), 7), *one_color_each(3)[:3]]:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", CollapseWarning)
            assert torch.equal(guarded(x), plain(x))
    assert same(guarded.state.snapshot(), plain.state.snapshot())


def test_small_batches_of_few_classes_are_not_reported() -> None:
    small = adapt(trained_on_colors(), "tent", statistics="auto", guard=Guard(unusable=2))
    assert not any(text for text, _ in run_on(small, one_color_each(1, 4)))


def test_the_count_of_unusable_batches_survives_saving(tmp_path: Path) -> None:
    guard = Guard(unusable=3)
    model, other = (adapt(trained_on_colors(), "tent", statistics="auto", guard=guard) for _ in range(2))
    batches = one_color_each(3)[:3]
    run_on(model, batches[:2])
    model.save(tmp_path / "state")
    other.restore(tmp_path / "state")
    with pytest.warns(CollapseWarning, match="batch 3: nothing was learned from 3 batches"):
        other(batches[2])


def test_reset_every_restores_the_source_model() -> None:
    model, fresh = (patient(lr=1e-3, reset_every=count) for count in (2, 0))
    batches = stream(5)
    for number, x in enumerate(batches):
        if number % 2 == 0:
            fresh.reset()
        assert torch.equal(model(x), fresh(x))


@pytest.mark.parametrize(("size", "what"), [(1, "one image"), (48, "one class")])
def test_batches_that_do_harm_without_a_guard_are_mentioned_once(size: int, what: str) -> None:
    buffer = SourceBuffer(colored(mixed(), 7), augment="none")
    batches = one_color_each(1, size)[:3]
    model = adapt(trained_on_colors(), "cretta", buffer=buffer)
    with pytest.warns(UserWarning, match=rf"{what}.*statistics='auto'.*guard="):
        model(batches[0])
    model(batches[1])  # a warning would be an error here
    blind = Guard(margin=1.0, flips=1.0, classes=1e-6, drift=1e6)
    variants: list[dict[str, Any]] = [{"statistics": "auto"}, {"guard": blind}]
    for options in variants:
        quiet = adapt(trained_on_colors(), "cretta", buffer=buffer, **options)
        for x in batches:
            quiet(x)
