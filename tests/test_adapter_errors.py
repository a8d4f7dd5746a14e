"""Batches, networks, options and steps that cannot be used."""

from __future__ import annotations

import types
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import cretta
import textbook
from adapters import METHODS, QUIET, AnyAdapter, Output, adapted, everything
from cretta.errors import BatchError, BusyError, CrettaError, ModelError, OptionError, SkipStep, StateError
from cretta.method import Facts, Objective

# Batches that cannot be used.


@dataclass
class Bad:
    batch: Callable[[], object]
    message: str


def with_value(value: float) -> Tensor:
    x = textbook.batches((8,))[0]
    x[3, 1, 2, 2] = value
    x[5, 0, 0, 0] = value
    return x


BAD = {
    "nan": Bad(lambda: with_value(float("nan")), r"2 of 8 samples.*NaN or infinite.*nothing was changed"),
    "inf": Bad(lambda: with_value(float("inf")), r"2 of 8 samples.*NaN or infinite"),
    "-inf": Bad(lambda: with_value(float("-inf")), r"2 of 8 samples"),
    "empty": Bad(lambda: torch.zeros(0, 3, 8, 8), r"empty.*\(0, 3, 8, 8\).*at least one"),
    "no pixels": Bad(lambda: torch.zeros(4, 3, 0, 8), r"empty"),
    "unbatched": Bad(lambda: textbook.batches((8,))[0][0], r"\(3, 8, 8\).*4 dimensions, the batch first"),
    "too many dimensions": Bad(lambda: textbook.batches((8,))[0][None], r"\(1, 8, 3, 8, 8\).*4 dimensions"),
    "a vector": Bad(lambda: torch.zeros(3), r"\(3,\).*batch dimension.*unsqueeze\(0\)"),
    "a scalar": Bad(lambda: torch.tensor(1.0), r"\(\).*batch dimension"),
    "a list": Bad(lambda: [1.0, 2.0], r"torch\.Tensor, not list"),
    "an array": Bad(lambda: textbook.batches((8,))[0].numpy(), r"torch\.Tensor, not ndarray"),
    "none": Bad(lambda: None, r"torch\.Tensor, not NoneType"),
}


@pytest.mark.parametrize("name", BAD)
@pytest.mark.parametrize(
    ("method", "options"),
    [
        ("cretta", {}),
        ("cretta", {"weighting": "uniform", "statistics": "moving", "guard": QUIET}),
        ("cretta", {"objective": "pairwise"}),
        ("tent", {}),
        ("source", {}),
        ("bn_adapt", {"statistics": "moving"}),
    ],
)
def test_a_bad_batch_raises_and_changes_nothing(method: str, options: dict[str, Any], name: str) -> None:
    model = adapted(method, lr=1e-2, **options)
    model(textbook.batches((8,))[0])
    before, last = everything(model), model.last
    for use in (model, model.predict):
        with pytest.raises(BatchError, match=BAD[name].message):
            use(BAD[name].batch())  # type: ignore[arg-type]
        textbook.assert_bits(everything(model), before)
        assert model.last is last
    undisturbed = adapted(method, lr=1e-2, **options)
    undisturbed(textbook.batches((8,))[0])
    x = textbook.batches((8,), seed=7)[0]
    assert torch.equal(model(x), undisturbed(x))


def test_large_finite_batches_are_not_mistaken_for_infinite_ones() -> None:
    """Their sum overflows, they do not: what is refused are the logits that come of them."""
    x = torch.full((4, 3, 8, 8), 3e38) * torch.tensor([1.0, -1.0, 1.0, 1.0]).view(-1, 1, 1, 1)
    assert not torch.isfinite(x.sum())
    with pytest.raises(BatchError, match=r"the logits are not finite.*got values from -3e\+38 to 3e\+38"):
        adapted("source")(x)


# Networks and options that cannot be used.


class Answer(nn.Module):
    """A network with something to adapt that returns whatever it is told to."""

    def __init__(self, answer: Callable[[Tensor, Tensor], object]) -> None:
        super().__init__()
        self.net = textbook.small_net()
        self.answer = answer

    def forward(self, x: Tensor) -> object:
        return self.answer(x, self.net(x))


GARBAGE: dict[str, tuple[Callable[[Tensor, Tensor], object], str]] = {
    "a tuple": (lambda x, z: (x, z), r"shape \(8, 3, 8, 8\) for a batch of 8"),
    "an empty tuple": (lambda x, z: (), r"returned tuple.*\.logits"),
    "none": (lambda x, z: None, r"returned NoneType"),
    "a dict without logits": (lambda x, z: {"scores": z}, r"returned dict"),
    "an object with strange logits": (lambda x, z: Output(logits=[1, 2]), r"returned Output"),
    "labels": (lambda x, z: z.argmax(1), r"shape \(8,\) for a batch of 8.*\(8, classes\)"),
    "a map": (lambda x, z: z[:, :, None, None], r"shape \(8, 5, 1, 1\)"),
    "a mean": (lambda x, z: z.mean(0, keepdim=True), r"shape \(1, 5\) for a batch of 8"),
    "a number": (lambda x, z: z.sum(), r"shape \(\)"),
}


@pytest.mark.parametrize("name", GARBAGE)
@pytest.mark.parametrize(
    ("method", "options"), [("cretta", {}), ("tent", {"statistics": "moving"}), ("source", {}), ("bn_adapt", {})]
)
def test_a_network_that_returns_garbage(method: str, options: dict[str, Any], name: str) -> None:
    answer, message = GARBAGE[name]
    model = adapted(method, Answer(answer), **options)
    before = everything(model)
    x = textbook.batches((8,))[0]
    for use in (model, model.predict):
        with pytest.raises(ModelError, match=message):
            use(x)
        textbook.assert_bits(everything(model), before)


@pytest.mark.parametrize("late", [False, True], ids=["while learning", "while answering"])
@pytest.mark.parametrize(
    ("options", "forwards"),
    [({}, 4), ({"weighting": "uniform"}, 3), ({"statistics": "moving"}, 4), ({"statistics": "moving", "steps": 2}, 6)],
    ids=str,
)
def test_a_network_that_fails_midway_leaves_everything_as_it_was(
    options: dict[str, Any], forwards: int, late: bool
) -> None:
    """As when memory runs out: at φ's forward, at θ's on target or source, or at the answer after the step.

    φ sees the target once, however many steps there are.

    A batch that raised can then be given again.
    """
    first, second = textbook.batches((8, 8))
    for failing in [forwards] if late else range(1, forwards):
        model = adapted("cretta", textbook.failing(textbook.small_net()), lr=1e-2, **options)
        undisturbed = adapted("cretta", lr=1e-2, **options)
        undisturbed(first)
        model(first)
        before = everything(model)
        textbook.Failing.count, textbook.Failing.fails = 0, failing
        try:
            with pytest.raises(RuntimeError, match="out of memory"):
                model(second)
        finally:
            textbook.Failing.fails = -1
        textbook.assert_bits(everything(model), before)
        textbook.Failing.count = 0
        assert torch.equal(model(second), undisturbed(second))
        assert textbook.Failing.count == forwards


@pytest.mark.parametrize("action", ["warn", "rollback", "reset"])
def test_an_alarm_turned_into_an_error_leaves_everything_as_it_was(action: str) -> None:
    """Under ``-W error`` the guard's warning is an exception, and what raises has changed nothing."""
    model = adapted("tent", lr=5.0, guard=cretta.Guard(action=action, classes=1.0, drift=0.5))
    alarmed = False
    for x in textbook.batches((8,) * 10):
        before = everything(model)
        try:
            model(x)
        except cretta.CollapseWarning:
            alarmed = True
            textbook.assert_bits(everything(model), before)
            break
    assert alarmed


def test_a_failure_in_a_later_step_undoes_the_earlier_ones() -> None:
    model = adapted("tent", textbook.failing(textbook.small_net()), lr=1e-2, steps=3)
    x = textbook.batches((8,))[0]
    before = everything(model)
    textbook.Failing.count, textbook.Failing.fails = 0, 2
    try:
        with pytest.raises(RuntimeError, match="out of memory"):
            model(x)
    finally:
        textbook.Failing.fails = -1
    textbook.assert_bits(everything(model), before)


@pytest.mark.parametrize("method", METHODS)
def test_a_network_that_answers_without_gradients_is_named_as_such(method: str) -> None:
    """Its forward runs under no_grad, as many an inference wrapper's does: it cannot learn, and must be told so."""

    class Wrapped(textbook.SmallNet):
        @torch.no_grad()
        def forward(self, x: Tensor) -> Tensor:
            return super().forward(x)

    net = Wrapped()
    net.load_state_dict(textbook.small_net().state_dict())
    model = adapted(method, net)
    before = everything(model)
    with pytest.raises(ModelError, match="gradient"):
        model(textbook.batches((8,))[0])
    textbook.assert_bits(everything(model), before)


def test_a_network_without_norm_layers() -> None:
    for method in METHODS:
        with pytest.raises(ModelError, match=r"Sequential has no normalization layer.*BatchNorm, GroupNorm.*'source'"):
            adapted(method, nn.Sequential(nn.Flatten(), nn.Linear(192, 3)))
        with pytest.raises(ModelError, match="no normalization layer"):
            adapted(method, nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4, affine=False)))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("method", METHODS)
def test_a_half_precision_network(method: str, dtype: torch.dtype) -> None:
    with pytest.raises(ModelError, match=rf"bn1\.weight is {dtype}.*net\.float\(\).*autocast"):
        adapted(method, textbook.small_net().to(dtype))


def test_what_is_no_module() -> None:
    with pytest.raises(ModelError, match=r"net is function; expected a torch\.nn\.Module"):
        cretta.adapt(lambda x: x, "tent")  # type: ignore[arg-type]
    with pytest.raises(ModelError, match=r"net is the class BatchNorm2d; expected an instance of it, BatchNorm2d\(…\)"):
        cretta.adapt(nn.BatchNorm2d, "tent")  # type: ignore[arg-type]


@pytest.mark.parametrize("method", METHODS)
def test_an_adapter_of_an_adapter(method: str) -> None:
    inner = cretta.adapt(textbook.small_net(), "tent")
    with pytest.raises(
        ModelError, match=r"net is an adapter \(tent\); expected the network that it adapts, or its exp"
    ):
        adapted(method, inner)


@pytest.mark.parametrize("name", ["fc.weight", "bn1.running_var"])
def test_a_network_with_weights_that_are_not_finite(name: str) -> None:
    net = textbook.small_net()
    net.state_dict()[name][0] = float("nan")
    model = cretta.adapt(net, "tent", statistics="running")
    with pytest.raises(ModelError, match=rf"the logits are not finite: {name} of net holds NaN or infinite values"):
        model(textbook.batches((8,))[0])


def test_a_lazy_network_that_was_never_run() -> None:
    net = nn.Sequential(nn.LazyConv2d(4, 3), nn.BatchNorm2d(4), nn.Flatten(), nn.LazyLinear(3))
    with pytest.raises(ModelError, match=r"lazy.*run one batch"):
        adapted("tent", net)


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"lr": 0.0}, ["lr=0.0", "above 0", "0.001"]),
        ({"lr": "fast"}, ["lr='fast'", "finite number"]),
        ({"lr": float("inf")}, ["lr=inf", "finite"]),
        ({"optimizer": "rmsprop"}, ["optimizer='rmsprop'", "'adam', 'sgd'"]),
        ({"momentum": 1.0}, ["momentum=1.0", "at least 0", "below 1"]),
        ({"nesterov": "yes"}, ["nesterov='yes'", "True or False"]),
        ({"weight_decay": -0.1}, ["weight_decay=-0.1", "at least 0"]),
        ({"steps": 0}, ["steps=0", "at least 1"]),
        ({"steps": 1.5}, ["steps=1.5", "an integer"]),
        ({"episodic": 1}, ["episodic=1", "True or False"]),
        ({"statistics": "train"}, ["statistics='train'", "'batch', 'running', 'mixture', 'moving'"]),
        ({"batch_weight": 0.0}, ["batch_weight=0.0", "above 0", "at most 1"]),
        ({"batch_weight": 1.1}, ["batch_weight=1.1", "at most 1"]),
        ({"predict": "later"}, ["predict='later'", "'before', 'after'"]),
        ({"skip": 4}, ["skip=4", "sequence of strings"]),
        ({"channels_last": None}, ["channels_last=None", "True or False"]),
        ({"guard": "panic"}, ["guard='panic'", "'warn', 'fallback', 'rollback', 'reset'"]),
        ({"seed": -1}, ["seed=-1", "at least 0"]),
        ({"learning_rate": 0.1}, ["unknown option of tent 'learning_rate'", "lr", "optimizer"]),
        ({"optimzer": "sgd"}, ["'optimzer'", "Did you mean 'optimizer'?"]),
        ({"beta": 1.0}, ["unknown option of tent 'beta'"]),
        ({"preset": "cifar"}, ["unknown preset of tent 'cifar'", "cifar10", "imagenet"]),
    ],
    ids=str,
)
def test_a_wrong_option_says_what_was_given_and_what_is_allowed(options: dict[str, Any], told: list[str]) -> None:
    with pytest.raises(OptionError) as caught:
        adapted("tent", **options)
    for part in told:
        assert part in str(caught.value)


@pytest.mark.parametrize(
    "options",
    [{"optimizer": "sgd", "nesterov": True, "momentum": 0.0}, {"seed": 2**64}, {"seed": 2**200}],
    ids=["nesterov without momentum", "seed of 65 bits", "seed of 201 bits"],
)
def test_what_torch_would_refuse_is_an_option_error(options: dict[str, Any]) -> None:
    with pytest.raises(OptionError):
        adapted("tent", **options)


def test_all_errors_have_one_base() -> None:
    for kind in (BatchError, BusyError, ModelError, OptionError, StateError):
        assert issubclass(kind, CrettaError)
        assert issubclass(kind, ValueError) != issubclass(kind, RuntimeError)
        assert getattr(cretta, kind.__name__) is kind


# Steps that are not finite.


class NanGradient(torch.autograd.Function):
    """The identity, with a gradient that is not a number."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, *slopes: Any) -> Any:
        return slopes[0] * float("nan")


class Touchy(textbook.SmallNet):
    """Answers a batch that holds a value above 100 with numbers, or gradients, that are not finite."""

    def __init__(self, how: str) -> None:
        super().__init__()
        self.how = how
        self.load_state_dict(textbook.small_net().state_dict())

    def forward(self, x: Tensor) -> Tensor:
        touched = bool(x.max() > 100)
        z = super().forward(x)
        if not touched:
            return z
        if self.how == "gradient":
            answered: Tensor = NanGradient.apply(z)  # type: ignore[no-untyped-call]
            return answered
        return z * float(self.how)


def touching() -> Tensor:
    x = textbook.batches((8,))[0]
    x[0, 0, 0, 0] = 101.0
    return x


@pytest.mark.parametrize("how", ["nan", "inf", "gradient"])
@pytest.mark.parametrize(
    ("method", "options"),
    [
        ("cretta", {}),
        ("cretta", {"reference": "batch", "pairs": "cartesian"}),
        ("cretta", {"objective": "nce"}),
        ("cretta", {"objective": "target"}),
        ("cretta", {"weighting": "uniform"}),
        ("cretta", {"statistics": "moving"}),
        ("cretta", {"predict": "before", "optimizer": "sgd"}),
        ("cretta", {"steps": 3}),
        ("tent", {}),
        ("tent", {"statistics": "moving"}),
    ],
    ids=str,
)
def test_a_step_that_is_not_finite_is_skipped(method: str, options: dict[str, Any], how: str) -> None:
    """And the model goes on as if that batch had never come."""
    model, undisturbed = (adapted(method, Touchy(how), lr=1e-2, **options) for _ in range(2))
    stream = textbook.batches()
    for x in stream[:2]:
        assert torch.equal(model(x), undisturbed(x))
    before = everything(model)
    if how == "gradient":
        assert torch.isfinite(model(touching())).all()
        last = model.last
        assert last.skipped
        assert not last.adapted
        assert "not finite" in last.reason
    else:
        for use in (model, model.predict):
            with pytest.raises(BatchError, match="the logits are not finite; nothing was changed"):
                use(touching())
    textbook.assert_bits(everything(model), before)
    for x in stream[2:]:
        assert torch.equal(model(x), undisturbed(x))
        last = model.last
        assert (last.adapted, last.skipped, last.reason) == (True, False, "")


def test_a_moving_average_survives_activations_that_overflow() -> None:
    """The batch is finite, its variance is not; one such batch must not spoil all that follow."""
    for method in ("tent", "bn_adapt"):
        model = adapted(method, statistics="moving")
        x, *rest = textbook.batches((8, 8))
        model(x)
        with pytest.warns(UserWarning, match="far outside"):
            model(1e30 * x)
        assert all(
            torch.isfinite(value).all() for name, value in model.state.snapshot().items() if "statistics" in name
        )
        assert torch.isfinite(model(rest[0])).all()


class Second(cretta.Adapter):
    """A method whose second step of a batch finds nothing to learn, or is not finite."""

    name = "second"
    facts = Facts(updates="norm affine", statistics="batch", logits="before")
    what = "nothing"

    def begin(self) -> None:
        self.memory["steps"] = torch.tensor(0)

    def objective(self, x: Tensor) -> Objective:
        steps = int(self.memory["steps"])
        self.memory["steps"] = torch.tensor(steps + 1)
        logits = self.model(x)
        if steps == 0:
            return Objective(logits.square().mean(), logits)
        if self.what == "nothing":
            raise SkipStep("nothing there", logits)
        return Objective(logits.square().mean() * float("nan"), logits)


@pytest.mark.parametrize("what", ["nothing", "nan"])
def test_the_record_says_whether_parameters_were_updated(what: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """``adapted`` is true exactly if the parameters are others than before the batch, whichever step was left out."""
    monkeypatch.setattr(Second, "what", what)
    model = Second(textbook.small_net(), steps=3, lr=1e-2)
    before = model.state.snapshot()["parameters.0"]
    model(textbook.batches((8,))[0])
    moved = not torch.equal(model.state.snapshot()["parameters.0"], before)
    assert model.last.adapted == moved
    assert model.last.reason


def parameters_of(model: AnyAdapter) -> Tensor:
    return model.state.snapshot()["parameters.0"]


@pytest.mark.filterwarnings(
    "ignore::DeprecationWarning", "ignore:.*autograd kernel was not registered", "ignore:torch.quantize"
)
@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("optimizer", ["adam", "sgd"])
def test_a_quantized_network_does_not_claim_to_adapt(method: str, optimizer: str) -> None:
    """Quantized layers pass zeros back."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        net = nn.Sequential(nn.Flatten(), nn.Linear(192, 8), nn.LayerNorm(8), nn.ReLU(), nn.Linear(8, 5)).eval()
    model = adapted(method, torch.ao.quantization.quantize_dynamic(net, {nn.Linear}), optimizer=optimizer)
    before = parameters_of(model)
    for x in textbook.batches((8, 8)):
        assert torch.isfinite(model(x)).all()
        assert torch.equal(parameters_of(model), before)
        assert (model.last.adapted, model.last.skipped) == (False, False)
        assert "no parameter moved: the gradient is zero" in model.last.reason
        assert "adapted=False" in repr(model.last)


def test_a_saturated_loss_does_not_claim_to_adapt() -> None:
    """A buffer on the scale 0 to 255 puts w, and the loss with it, to 0."""
    images = torch.rand(20, 3, 8, 8, generator=torch.Generator().manual_seed(0))
    net = textbook.small_net()
    net.fc.weight.data.mul_(10)
    model = adapted("cretta", net, buffer=cretta.SourceBuffer(255 * images, augment="none"))
    before = parameters_of(model)
    with pytest.warns(UserWarning, match="differ in scale"):
        model(images[:8])
    assert (model.last.loss, model.last.weight) == (0.0, 0.0)
    assert torch.equal(parameters_of(model), before)
    assert not model.last.adapted
    assert "nor has a loss of zero" in model.last.reason


@pytest.mark.parametrize(("lr", "steps"), [(1e-12, 1), (1e-12, 3), (1e-2, 1), (1e-2, 3)])
@pytest.mark.parametrize("predict", ["before", "after"])
def test_adapted_is_whether_parameters_changed(lr: float, steps: int, predict: str) -> None:
    model = adapted("tent", optimizer="sgd", lr=lr, steps=steps, predict=predict)
    for x in textbook.batches((8, 8)):
        before = parameters_of(model)
        model(x)
        assert model.last.adapted == (not torch.equal(parameters_of(model), before)) == (lr > 1e-3)
        assert (model.last.reason == "") == model.last.adapted


class Idle(cretta.Adapter):
    """Finds nothing to learn from."""

    name = "idle"
    facts = Facts(updates="norm affine", statistics="batch", logits="after")

    def objective(self, x: Tensor) -> Objective:
        self.memory["seen"] = torch.tensor(1)
        raise SkipStep("nobody is sure enough", self.model(x))


def test_a_batch_without_anything_to_learn_is_skipped_with_the_methods_reason() -> None:
    net, x = textbook.small_net(dtype=torch.float64), textbook.batches((8,), dtype=torch.float64)[0]
    model = Idle(net)
    before = everything(model)
    torch.testing.assert_close(model(x), textbook.bn_adapt(net, [x]).logits[0])
    assert model.last.skipped
    assert model.last.reason == "nobody is sure enough"
    assert model.last.loss is None
    textbook.assert_bits(everything(model), before)


# Mistakes in the class of a method.


def test_facts_have_known_values() -> None:
    fine = {"updates": "all", "statistics": "batch", "logits": "before", "source_data": "none"}
    for name, value, hint in (
        ("updates", "norm", "nothing"),
        ("statistics", "batches", "Did you mean 'batch'"),
        ("logits", "late", "after, before"),
        ("source_data", True, "none, required"),
    ):
        with pytest.raises(OptionError, match=rf"unknown value of Facts\.{name} {value!r}.*{hint}"):
            Facts(**(fine | {name: value}))  # type: ignore[arg-type]


def test_a_method_without_facts() -> None:
    with pytest.raises(OptionError, match=r"Bare has no facts\. In the class, set facts = Facts\(updates="):
        type("Bare", (cretta.Adapter,), {"name": "bare"})


class Mistaken(cretta.Adapter):
    """Computes what a test asks for."""

    name = "mistaken"
    facts = Facts(updates="norm affine", statistics="batch", logits="before")
    result: Callable[[Tensor], Any]

    def objective(self, x: Tensor) -> Objective:
        return type(self).result(self.model(x))  # type: ignore[no-any-return]


@pytest.mark.parametrize(
    ("result", "error", "message"),
    [
        (
            lambda z: z.mean(),
            TypeError,
            r"expected Mistaken\.objective to return Objective\(loss, logits\), got Tensor",
        ),
        (
            lambda z: Objective(z.mean(1), z),
            ModelError,
            r"term of the loss of mistaken to be a scalar, got shape \(8,\)",
        ),
        (lambda z: Objective([z.mean(), z.detach().mean], z), ModelError, "every term of the loss has to depend on"),
    ],
)
def test_an_objective_that_cannot_be_used_changes_nothing(
    monkeypatch: pytest.MonkeyPatch, result: Callable[[Tensor], Any], error: type[Exception], message: str
) -> None:
    model = Mistaken(textbook.small_net())
    before = everything(model)
    monkeypatch.setattr(Mistaken, "result", staticmethod(result), raising=False)
    with pytest.raises(error, match=message):
        model(textbook.batches((8,))[0])
    textbook.assert_bits(everything(model), before)


def test_a_source_model_with_unknown_statistics() -> None:
    with pytest.raises(OptionError, match=r"unknown kind of statistics 'runing'.*Did you mean 'running'"):
        adapted("tent").frozen("runing")


def test_options_without_validation() -> None:
    @dataclass(frozen=True, kw_only=True)
    class Plain(cretta.Options):
        anchor: float = 0.1

    class Undecorated(cretta.Options):
        anchor: float = 0.1

    with pytest.raises(OptionError, match=r"'anchor' of Plain: expected a default from cretta\.options.*got 0\.1"):
        types.new_class("Method", (cretta.Adapter[Plain],))
    with pytest.raises(OptionError, match=r"Undecorated is not a dataclass; decorate it"):
        types.new_class("Method", (cretta.Adapter[Undecorated],))
