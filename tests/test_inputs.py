"""Buffers and batches on another scale, batches far outside, and what a call returns then."""

from __future__ import annotations

import copy
import functools
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import cretta
import textbook
from cretta.data import CORRUPTIONS, corrupt, embedded
from cretta.errors import BatchError
from cretta.inputs import ENOUGH, FAR, FIRST, InputRange
from cretta.method import Facts, Objective

AnyAdapter = cretta.Adapter[Any]
Transform = Callable[[Tensor], Tensor]
MEAN = torch.tensor([0.4914, 0.4822, 0.4465]).view(3, 1, 1)
DEVIATION = torch.tensor([0.247, 0.243, 0.261]).view(3, 1, 1)
SCALES: dict[str, Transform] = {
    "0 to 1": lambda x: x,
    "0 to 255": lambda x: 255 * x,
    "0 to 1/255": lambda x: x / 255,
    "normalized": lambda x: (x - MEAN) / DEVIATION,
}


def images(count: int, seed: int) -> Tensor:
    """In [0, 1], each of a color of its own."""
    generator = torch.Generator().manual_seed(seed)
    colors = torch.rand(count, 3, 1, 1, generator=generator)
    return (0.6 * colors + 0.4 * torch.rand(count, 3, textbook.SIDE, textbook.SIDE, generator=generator)).clamp(0, 1)


def stream(count: int = 4, size: int = 8) -> list[Tensor]:
    return list(images(count * size, 1).split(size))


def made(method: str, scale: Transform = SCALES["0 to 1"], **options: Any) -> AnyAdapter:
    buffer = cretta.SourceBuffer(scale(images(20, 0)), augment="none")
    net = options.pop("net", None) or textbook.small_net()
    return cretta.adapt(net, method, buffer=buffer, **{"lr": 1e-2, **options})


def everything(model: AnyAdapter) -> dict[str, Tensor]:
    guard = {f"guard.{n}": t.clone() for n, t in model._guard.snapshot().items()} if model._guard is not None else {}
    return model.state.snapshot() | {f"range.{n}": t.clone() for n, t in model._inputs.snapshot().items()} | guard


def warned(model: AnyAdapter, batches: list[Tensor]) -> list[str]:
    """Messages of the warnings that point to the line below."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for x in batches:
            model(x)
    assert all(Path(warning.filename) == Path(__file__) for warning in caught)
    return [str(warning.message) for warning in caught]


# The buffer and the first batch.


@pytest.mark.parametrize("method", ["cretta", "eata"])
def test_a_buffer_of_another_size_is_refused(method: str) -> None:
    model = made(method)
    before = everything(model)
    x = nn.functional.interpolate(stream()[0], scale_factor=2)
    with pytest.raises(BatchError, match=r"\(3, 8, 8\) in the buffer and \(3, 16, 16\) in the batch; build the buffer"):
        model(x)
    textbook.assert_bits(everything(model), before)
    model(stream()[0])


@pytest.mark.parametrize(
    ("buffer", "batch", "cause"),
    [
        ("0 to 255", "0 to 1", "the buffer is on the scale 0 to 255, and the batch is not: divide it by 255"),
        ("0 to 255", "normalized", "the buffer is on the scale 0 to 255"),
        (
            "0 to 1",
            "normalized",
            "the batch was normalized by mean and deviation outside the network, and the buffer was not",
        ),
        ("0 to 1/255", "0 to 1", "the buffer was divided by 255 twice, and the batch was not"),
        ("0 to 1", "0 to 1/255", "the batch was divided by 255 twice, and the buffer was not"),
        (
            "normalized",
            "0 to 1",
            "the buffer was normalized by mean and deviation outside the network, and the batch was not",
        ),
    ],
)
def test_a_buffer_on_another_scale_is_warned_of_once(buffer: str, batch: str, cause: str) -> None:
    model = made("cretta", SCALES[buffer])
    (message,) = warned(model, [SCALES[batch](x) for x in stream()])
    assert "differ in scale" in message
    assert cause in message
    for x in (SCALES[buffer](images(20, 0)), SCALES[batch](stream()[0])):
        assert f"mean {float(x.mean()):.3g}, deviation {float(x.std(correction=0)):.3g}" in message


@pytest.mark.parametrize("scale", SCALES)
def test_a_buffer_on_the_same_scale_is_not_warned_of(scale: str) -> None:
    assert warned(made("cretta", SCALES[scale]), [SCALES[scale](x) for x in stream()]) == []


def test_a_buffer_that_nobody_reads_is_not_compared() -> None:
    assert warned(made("tent", SCALES["0 to 255"]), stream()) == []


def test_what_a_callable_augmentation_makes_is_compared() -> None:
    """A buffer of bytes whose augmentation normalizes fits a normalized stream."""
    buffer = cretta.SourceBuffer(images(20, 0), augment=SCALES["normalized"])
    model = cretta.adapt(textbook.small_net(), "cretta", buffer=buffer)
    assert warned(model, [SCALES["normalized"](x) for x in stream()]) == []


def test_a_constant_first_batch_is_not_compared() -> None:
    model = made("cretta", SCALES["normalized"])
    assert warned(model, [torch.zeros(8, 3, textbook.SIDE, textbook.SIDE)]) == []
    assert len(warned(model, stream())) == 1


@pytest.mark.parametrize("size", [2, 3])
def test_batches_of_few_images_are_compared_when_there_are_enough(size: int) -> None:
    model, few = made("cretta", SCALES["normalized"]), stream(6, size)
    batches = -(-ENOUGH // size)
    assert warned(model, few[: batches - 1]) == []
    (message,) = warned(model, few[batches - 1 :])
    assert "the buffer was normalized by mean and deviation outside the network" in message
    assert warned(made("cretta"), few) == []


def test_a_warning_made_an_error_changes_nothing() -> None:
    model, x = made("cretta", SCALES["0 to 255"]), stream()[0]
    before = everything(model)
    for _ in range(2):
        with pytest.raises(UserWarning, match="differ in scale"):
            model(x)  # the suite turns warnings into errors
        textbook.assert_bits(everything(model), before)


@functools.cache
def photographs() -> tuple[Tensor, dict[str, Tensor]]:
    """Source images, and others under every corruption at severity 5 except frost, which needs a package."""

    def floats(array: Any) -> Tensor:
        return torch.from_numpy(array).permute(0, 3, 1, 2).float() / 255

    test = embedded("test").images[:16]
    shifted = {name: floats(corrupt(test, name, severity=5)) for name in CORRUPTIONS if name != "frost"}
    return floats(embedded("train").images[:64]), shifted


@pytest.mark.parametrize("scale", SCALES)
@pytest.mark.parametrize("size", [1, 8, 16])
def test_corruptions_at_full_severity_are_no_other_scale(scale: str, size: int) -> None:
    source, shifted = photographs()
    buffer = cretta.SourceBuffer(SCALES[scale](source), augment="none")
    for name, target in shifted.items():
        for x in SCALES[scale](target).split(size):
            inputs = InputRange(buffer)
            limit = inputs.limit(x)
            assert limit is not None
            assert x.norm() < limit / 5, name
            inputs.follow(x)  # a warning would be an error


# Batches far outside.


class Careless(cretta.Adapter):
    """A method that takes its step without checking anything."""

    name = "careless"
    facts = Facts(updates="norm affine", statistics="batch", logits="before")

    def objective(self, x: Tensor) -> Objective:
        logits = self.model(x)
        return Objective(cretta.functional.entropy(logits).mean(), logits)

    def update(self, x: Tensor, objective: Objective) -> None:
        self.backward(*objective.terms)
        assert self.state.optimizer is not None
        self.state.optimizer.step()


QUIET = cretta.Guard(action="warn", classes=1e-6, drift=1e6)
LENIENT = {"entropy_margin": 10.0}
CASES: dict[str, tuple[str | type[AnyAdapter], dict[str, Any]]] = {
    "cretta": ("cretta", {}),
    "cretta, moving": ("cretta", {"statistics": "moving", "guard": QUIET}),
    "cretta, two steps": ("cretta", {"steps": 2}),
    "tent": ("tent", {}),
    "tent, moving": ("tent", {"statistics": "moving", "guard": QUIET}),
    "tent, after": ("tent", {"predict": "after", "statistics": "moving"}),
    "tent, every other batch": ("tent", {"adapt_every": 2, "statistics": "moving"}),
    "tent, episodic": ("tent", {"episodic": True}),
    "sar": ("sar", {**LENIENT, "reset_below": 0.0}),
    "sar, after": ("sar", {**LENIENT, "reset_below": 0.0, "predict": "after"}),
    "eata": ("eata", {**LENIENT, "redundancy_margin": 2.0}),
    "pl, nobody sure": ("pl", {"threshold": 0.999999}),
    "tea": ("tea", {"sampling_steps": 2, "replay": 30}),
    "bn_adapt": ("bn_adapt", {"statistics": "moving"}),
    "source": ("source", {}),
    "careless": (Careless, {}),
}


def case(name: str) -> AnyAdapter:
    method, options = CASES[name]
    if isinstance(method, str):
        return made(method, **options)
    return cretta.adapt(textbook.small_net(), method, lr=1e-2, **options)


@pytest.mark.parametrize("factor", [255.0, -255.0, 1e30])
@pytest.mark.parametrize("name", CASES)
def test_a_batch_far_outside_is_predicted_and_not_learned_from(name: str, factor: float) -> None:
    model, undisturbed = case(name), case(name)
    batches = stream()
    for x in batches[:2]:
        model(x)
        undisturbed(x)
    before = everything(model)
    source = "buffer" if model.facts.source_data == "required" else "first batches"
    with pytest.warns(UserWarning, match=f"far outside the range of the {source}.*predicted, but not learned from"):
        logits = model(factor * batches[2])
    textbook.assert_bits(everything(model), before)
    assert torch.isfinite(logits).all()
    assert (model.last.size, model.last.adapted, model.last.skipped) == (8, False, True)
    assert model.last.reason == f"far outside the range of the {source}"
    model(factor * batches[3])  # no second warning: it would be an error
    textbook.assert_bits(everything(model), before)
    for x in batches[2:]:
        assert torch.equal(model(x), undisturbed(x))
    textbook.assert_bits(everything(model), everything(undisturbed))


def test_the_warning_names_numbers_and_the_likely_cause() -> None:
    x = stream()[0]
    (message,) = warned(made("cretta"), [255 * x, 255 * x])
    assert f"mean {255 * float(x.mean()):.3g}" in message
    assert f"largest absolute value {float(images(20, 0).max()):.3g}" in message
    assert "the batch is on the scale 0 to 255" in message
    (message,) = warned(made("tent"), [x, 255 * x])
    assert "x / 255" in message
    assert "reset()" in message


@pytest.mark.parametrize("name", CASES)
def test_logits_that_are_not_finite_are_not_returned(name: str) -> None:
    class Overflowing(textbook.SmallNet):
        def forward(self, x: Tensor) -> Tensor:
            return super().forward(x) + x.flatten(1).sum(1, keepdim=True) * 10

    net = Overflowing()
    net.load_state_dict(textbook.small_net().state_dict())
    method, options = CASES[name]
    buffer = cretta.SourceBuffer(images(20, 0), augment="none")
    model = cretta.adapt(net, method, buffer=buffer, **{"lr": 1e-2, **options})
    x, *others = stream()
    model(x)
    before, last = everything(model), model.last
    for use in (model, model.predict):
        with pytest.raises(
            BatchError, match=r"the logits are not finite; nothing was changed.*got values from -1e\+38"
        ):
            use(-1e38 * others[0] / others[0].max())
        textbook.assert_bits(everything(model), before)
        assert model.last is last
    assert torch.isfinite(model(others[1])).all()


@pytest.mark.parametrize("method", ["tent", "cretta", "bn_adapt", "source"])
@pytest.mark.parametrize("statistics", ["batch", "running", "moving"])
@pytest.mark.parametrize("factor", [255.0, -255.0, 1e19, 1e30, 1e38, -1e38])
def test_whatever_the_scale_logits_are_finite_or_the_call_raises(method: str, statistics: str, factor: float) -> None:
    model = made(method, statistics=statistics)
    x, y = stream(2)
    model(x)
    before = everything(model)
    for use in (model, model.predict):
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", ".*far outside")
            try:
                assert torch.isfinite(use(factor * y)).all()
            except BatchError as error:
                assert "the logits are not finite" in str(error)  # noqa: PT017
        textbook.assert_bits(everything(model), before)


# What the first batches leave behind.


def test_the_limit_is_met_exactly() -> None:
    """Ten times the largest absolute value, by the root mean square; at least that of images in [0, 1]."""
    ones = torch.ones(4, 3, 5, 5)
    inputs = InputRange(None)
    assert inputs.limit(ones) is None
    for first, largest in ((0.0, 1.0), (0.5, 1.0), (-3.0, 3.0), (2.0, 3.0)):
        inputs.follow(first * ones)
        limit = inputs.limit(ones)
        assert limit is not None
        assert float(limit) == pytest.approx(FAR * largest * float(ones.norm()))
    inputs = InputRange(cretta.SourceBuffer(torch.full((5, 3, 5, 5), -7.5), augment="none"))
    assert float(inputs.limit(ones) or 0) == pytest.approx(FAR * 7.5 * float(ones.norm()))


def test_only_the_first_batches_make_the_range() -> None:
    model, x = made("tent"), stream()[0]
    for k in range(FIRST + 3):
        model(x * (5 if k >= FIRST else 2))
    assert float(model._inputs.snapshot()["largest"]) == pytest.approx(2 * float(x.max()))


def test_dark_first_images_are_no_range_of_their_own() -> None:
    model = made("tent")
    assert warned(model, [torch.zeros_like(stream()[0]), *stream()]) == []
    assert model.last.adapted


def test_the_range_is_saved_restored_and_reset(tmp_path: Path) -> None:
    path, (x, y, *_) = tmp_path / "state.safetensors", stream()
    model = made("tent")
    model(x)
    model.save(path)
    other = made("tent")
    other.restore(path)
    textbook.assert_bits(everything(other), everything(model))
    with pytest.warns(UserWarning, match="far outside"):
        other(255 * y)
    assert not other.last.adapted
    model.reset()
    assert model._inputs.snapshot() == {}
    model(255 * y)  # the first batch of a new stream: there is nothing to compare it with
    assert model.last.adapted
    made("tent").save(path)
    other.restore(path)
    assert other._inputs.snapshot() == {}


def test_a_return_to_the_source_model_does_not_forget_the_range() -> None:
    """SAR resets its model by itself; the batches before still say what is usual."""
    model = made("sar", entropy_margin=10.0, reset_below=100.0)
    x, y, *_ = stream()
    model(x)
    assert "reset to the source model" in model.last.reason
    with pytest.warns(UserWarning, match="far outside"):
        model(255 * y)


# How a batch is passed.


class Hub(nn.Module):
    """Takes and returns what models of a hub do."""

    def __init__(self, kind: Callable[[Tensor], object] = lambda z: {"logits": z}) -> None:
        super().__init__()
        self.net = textbook.small_net()
        self.kind = kind

    def forward(self, mask: Tensor | None = None, pixel_values: Tensor | None = None, sign: float = 1.0) -> object:
        assert mask is None
        assert pixel_values is not None
        return self.kind(self.net(sign * pixel_values))


class Features(dict[str, Any]):
    """What a processor of images returns."""


PASSED: dict[str, Callable[[AnyAdapter, Tensor], Tensor]] = {
    "a keyword": lambda model, x: model(pixel_values=x),
    "a dictionary": lambda model, x: model({"pixel_values": x}),
    "its subclass": lambda model, x: model(Features(pixel_values=x)),
    "with a constant": lambda model, x: model(pixel_values=-x, sign=-1.0),
    "a constant in a dictionary": lambda model, x: model({"pixel_values": x, "sign": 1.0, "mask": None}),
}


@pytest.mark.parametrize("how", PASSED)
@pytest.mark.parametrize("name", ["cretta", "cretta, moving", "sar", "eata", "tea", "bn_adapt", "source"])
def test_batches_by_name_give_the_same_numbers(name: str, how: str) -> None:
    if how == "with a constant" and CASES[name][0] in ("cretta", "eata", "tea"):
        pytest.skip("source samples get the constant too")
    method, options = CASES[name]
    model, plain = made(str(method), net=Hub(), **options), case(name)
    for x in stream():
        assert torch.equal(PASSED[how](model, x), plain(x))
    assert (model.backend.name == "plain") == (plain.backend.name == "plain")
    for value, expected in zip(model.state.snapshot().values(), plain.state.snapshot().values(), strict=True):
        assert torch.equal(value, expected)
    for predicted in (model.predict(pixel_values=x), model.predict({"pixel_values": x})):
        torch.testing.assert_close(predicted, plain.predict(x))


def test_constants_go_with_source_samples_too() -> None:
    signs: list[tuple[int, float]] = []

    class Listening(Hub):
        def forward(self, mask: Tensor | None = None, pixel_values: Tensor | None = None, sign: float = 1.0) -> object:
            signs.append((len(pixel_values) if pixel_values is not None else 0, sign))
            return super().forward(mask, pixel_values, sign)

    model = made("cretta", net=Listening(), fuse=False)
    model(pixel_values=stream()[0], sign=0.5)
    assert len(signs) == 5  # φ on the batch and on the buffer's 20, θ on both, and the answer
    assert {sign for _, sign in signs} == {0.5}
    assert {count for count, _ in signs} == {8, 20}


def test_by_position_and_by_name_in_turns() -> None:
    class Simple(textbook.SmallNet):
        def forward(self, pixel_values: Tensor, scale: float = 1.0) -> Tensor:
            return scale * super().forward(pixel_values)

    net = Simple()
    net.load_state_dict(textbook.small_net().state_dict())
    model, plain = made("cretta", net=net), made("cretta", net=copy.deepcopy(net), fuse=False)
    x = stream()[0]
    for _ in range(2):
        for use in (model, plain):
            use(x)
        torch.testing.assert_close(model.predict(pixel_values=x), plain.predict(x))
        torch.testing.assert_close(model.predict(x, scale=3.0), 3 * plain.predict(x))
        torch.testing.assert_close(model.predict(x), plain.predict(x))


@pytest.mark.parametrize(
    "kind",
    [lambda z: (z,), lambda z: (z, {"hidden": z}), lambda z: {"logits": z, "loss": None}],
    ids=["a tuple of one", "a tuple", "a mapping"],
)
def test_logits_in_a_tuple_or_a_mapping(kind: Callable[[Tensor], object]) -> None:
    model, plain = made("cretta", net=Hub(kind)), made("cretta")
    for x in stream():
        assert torch.equal(model(pixel_values=x), plain(x))


@pytest.mark.parametrize(
    ("passed", "message"),
    [
        (lambda use, x: use(pixel_values=x, labels=x), "expected one torch.Tensor, got pixel_values, labels; pass the"),
        (lambda use, x: use({"pixel_values": x, "mask": x}), "got pixel_values, mask"),
        (lambda use, x: use(x, mask=x), "got one by position, mask"),
        (lambda use, x: use({"pixel_values": x.numpy()}), "must be a torch.Tensor, not ndarray"),
        (lambda use, x: use({}), "not NoneType"),
        (lambda use, x: use(), "not NoneType"),
        (lambda use, x: use(pixel_values=x[:0]), "the batch is empty"),
    ],
    ids=range(7),
)
def test_what_is_not_one_batch_is_refused(passed: Callable[[Any, Tensor], Tensor], message: str) -> None:
    model, x = made("tent", net=Hub()), stream()[0]
    model(pixel_values=x)
    before = everything(model)
    for use in (model, model.predict):
        with pytest.raises(BatchError, match=message):
            passed(use, x)
        textbook.assert_bits(everything(model), before)
    model(pixel_values=x)
