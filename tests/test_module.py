"""The adapter as a torch.nn.Module: state dicts, copies, pickles, devices, containers."""

from __future__ import annotations

import copy
import io
import pickle
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import cretta
import textbook

AnyAdapter = cretta.Adapter[Any]
QUIET = cretta.Guard(action="rollback", classes=1e-6, drift=1e6)
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "source": ("source", {}),
    "tent": ("tent", {}),
    "tent, sgd, moving, guard": ("tent", {"optimizer": "sgd", "statistics": "moving", "guard": QUIET}),
    "tent, one batch in two": ("tent", {"adapt_every": 2}),
    "cretta": ("cretta", {}),
    "cretta, uniform weights, two steps": ("cretta", {"weighting": "uniform", "steps": 2}),
    "eata": ("eata", {"entropy_margin": 10.0, "redundancy_margin": 2.0}),
    "sar": ("sar", {"entropy_margin": 10.0, "reset_below": 0.0}),
    "tea": ("tea", {"sampling_steps": 2, "replay": 30}),
}


def made(case: str, net: nn.Module | None = None) -> AnyAdapter:
    method, options = CASES[case]
    buffer = cretta.SourceBuffer(textbook.source_images(13), augment="none")
    return cretta.adapt(net if net is not None else textbook.small_net(), method, buffer=buffer, lr=1e-2, **options)


def through_pickle(model: AnyAdapter) -> AnyAdapter:
    copied: AnyAdapter = pickle.loads(pickle.dumps(model))
    return copied


def through_torch_save(model: AnyAdapter) -> AnyAdapter:
    file = io.BytesIO()
    torch.save(model, file)
    file.seek(0)
    loaded: AnyAdapter = torch.load(file, weights_only=False)
    return loaded


@pytest.mark.parametrize("duplicate", [copy.deepcopy, through_pickle, through_torch_save])
@pytest.mark.parametrize("case", CASES)
def test_a_copy_continues_bit_for_bit_and_apart(case: str, duplicate: Callable[[AnyAdapter], AnyAdapter]) -> None:
    stream = textbook.batches((8, 8, 7, 8, 5))
    undisturbed, model = made(case), made(case)
    expected = [undisturbed(x) for x in stream]
    for x in stream[:3]:
        model(x)
    duplicated = duplicate(model)
    assert type(duplicated) is type(model)
    assert duplicated.last.loss == model.last.loss
    before = model.state_dict()
    for x, logits in zip(stream[3:], expected[3:], strict=True):
        assert torch.equal(duplicated(x), logits)
    textbook.assert_bits(model.state_dict(), before)
    for x, logits in zip(stream[3:], expected[3:], strict=True):
        assert torch.equal(model(x), logits)
    textbook.assert_bits(duplicated.state_dict(), model.state_dict())


def test_a_deep_copy_has_its_own_network() -> None:
    net = textbook.small_net()
    model = made("tent", net)
    copied = copy.deepcopy(model)
    assert copied.net is not net
    with torch.no_grad():
        net.conv1.weight.zero_()
    assert float(copied.predict(textbook.batches((4,))[0]).abs().sum()) > 0
    assert copied.net.get_parameter("conv1.weight").abs().sum() > 0


@pytest.mark.parametrize("case", CASES)
def test_a_state_dict_in_a_fresh_adapter_continues_bit_for_bit(case: str) -> None:
    stream = textbook.batches((8, 8, 7, 8, 5))
    undisturbed, model, fresh = made(case), made(case), made(case)
    expected = [undisturbed(x) for x in stream]
    for x in stream[:3]:
        model(x)
    fresh(stream[4])
    file = io.BytesIO()
    torch.save(model.state_dict(), file)
    file.seek(0)
    fresh.load_state_dict(torch.load(file))
    for x, logits in zip(stream[3:], expected[3:], strict=True):
        assert torch.equal(fresh(x), logits)
    textbook.assert_bits(fresh.state_dict(), undisturbed.state_dict())


def test_a_state_dict_is_a_copy_of_what_evolves() -> None:
    net = textbook.small_net()
    model = made("tent, sgd, moving, guard", net)
    model(textbook.batches((8,))[0])
    state = model.state_dict()
    assert {name.split(".")[0] for name in state} == {
        *("generator", "cycle", "batches", "parameters", "optimizer", "statistics", "guard", "range")
    }
    for value in state.values():
        value.zero_()
    assert model.state_dict()["parameters.0"].abs().sum() > 0
    assert sum(value.numel() for name, value in state.items() if name.startswith("parameters")) == sum(
        parameter.numel() for layer in (net.bn1, net.bn2) for parameter in layer.parameters()
    )


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda state: state.pop("parameters.0"), "expected 'parameters.0' to be .* got nothing"),
        (lambda state: state.update(generator=torch.zeros(3)), None),
        (lambda state: state.update({"parameters.0": torch.zeros(3)}), r"got \(3,\) of torch.float32"),
        (lambda state: state.clear(), r"expected the state of an adapter, as from its state_dict\(\) or save\(\)"),
    ],
    ids=["missing", "random numbers of another device", "another shape", "empty"],
)
def test_a_state_dict_that_does_not_fit(change: Callable[[dict[str, Tensor]], object], message: str | None) -> None:
    model, other = made("tent"), made("tent")
    model(textbook.batches((8,))[0])
    state, before = model.state_dict(), other.state_dict()
    change(state)
    if message is None:
        other.load_state_dict(state)
        assert torch.equal(other.state_dict()["generator"], before["generator"])
        return
    with pytest.raises(cretta.StateError, match=message):
        other.load_state_dict(state)
    textbook.assert_bits(other.state_dict(), before)
    with pytest.raises(RuntimeError, match=message):
        nn.Sequential(other).load_state_dict({f"0.{name}": value for name, value in state.items()})
    textbook.assert_bits(other.state_dict(), before)


def test_inside_a_container() -> None:
    x, y = textbook.batches((8, 8))
    plain, inside, fresh = made("cretta"), made("cretta"), made("cretta")
    expected = [plain(2 * batch - 1) for batch in (x, y)]

    class Scale(nn.Module):
        def forward(self, images: Tensor) -> Tensor:
            return 2 * images - 1

    pipeline = nn.Sequential(Scale(), inside)
    assert torch.equal(pipeline(x), expected[0])
    state = pipeline.state_dict()
    assert set(state) == {f"1.{name}" for name in inside.state_dict()}
    other = nn.Sequential(Scale(), fresh)
    other.load_state_dict(state)
    assert torch.equal(other(y), expected[1])
    assert next(name for name, _ in pipeline.named_parameters()) == "1.network.conv1.weight"


def test_parameters_are_those_of_the_adapting_copy() -> None:
    net = textbook.small_net()
    model = made("tent", net)
    names = dict(model.named_parameters())
    assert set(names) == {f"network.{name}" for name, _ in net.named_parameters()}
    learning = {name for name, parameter in names.items() if parameter.requires_grad}
    assert learning == {f"network.{layer}.{name}" for layer in ("bn1", "bn2") for name in ("weight", "bias")}
    assert names["network.conv1.weight"].data_ptr() == net.conv1.weight.data_ptr()
    before = names["network.bn1.weight"].detach().clone()
    model(textbook.batches((8,))[0])
    assert not torch.equal(names["network.bn1.weight"], before)
    assert len(list(model.parameters())) == len(list(net.parameters()))
    assert list(model.children()) == []


def test_zero_grad_leaves_the_layout_of_gradients() -> None:
    x, y = textbook.batches((8, 8))
    one, two = made("tent"), made("tent")
    one(x)
    two(x)
    one.zero_grad()
    assert all(float(gradient.abs().sum()) == 0 for gradient in one.learnable.gradients())
    assert torch.equal(one(y), two(y))


@pytest.mark.parametrize("case", ["tent", "cretta"])
def test_train_and_eval_change_nothing(case: str) -> None:
    stream = textbook.batches((8, 8, 8))
    plain, switched = made(case), made(case)
    for x, mode in zip(stream, (True, False, True), strict=True):
        switched.train(mode)
        assert torch.equal(switched(x), plain(x))
        assert not any(module.training for module in switched.model.module.modules())


def test_another_dtype_is_refused_with_a_remedy() -> None:
    model = made("tent")
    before = model.state_dict()
    for convert in (model.double, model.half, lambda: model.to(torch.bfloat16), lambda: model.to("cpu", torch.double)):
        with pytest.raises(cretta.ModelError, match=r"expected a device, got torch\..*float.*adapt it again"):
            convert()
    textbook.assert_bits(model.state_dict(), before)
    assert model.float() is model
    assert model.to("cpu") is model
    assert model.cpu() is model
    assert model.to(torch.zeros(1)) is model
    assert model.device == torch.device("cpu")


def test_to_another_device_rebuilds_and_keeps_the_state() -> None:
    """The meta device has no numbers: it shows what is moved, and that the user's network is not."""
    net = textbook.small_net()
    model = made("tent", net)
    model(textbook.batches((8,))[0])
    moved = copy.deepcopy(model)
    calls: list[str] = []
    build = moved._build

    def traced(net: nn.Module) -> None:
        calls.append(next(net.parameters()).device.type)
        build(made("tent").net)  # a network on the CPU again, with other tensors

    moved._build = traced  # type: ignore[method-assign]
    moved.to("meta")
    assert calls == ["meta"]
    textbook.assert_bits(moved.state_dict(), model.state_dict())
    assert next(net.parameters()).device.type == "cpu"


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("case", CASES)
def test_to_the_gpu_and_back(case: str) -> None:
    net = textbook.small_net()
    model, plain = made(case, net), made(case)
    stream = textbook.batches((8, 8, 8))
    assert torch.equal(model(stream[0]), plain(stream[0]))
    model.to("cuda")
    assert model.device.type == "cuda"
    assert next(net.parameters()).device.type == "cpu"
    assert all(parameter.is_cuda for parameter in model.parameters())
    torch.testing.assert_close(model(stream[1].cuda()).cpu(), plain(stream[1]), rtol=1e-3, atol=1e-3)
    model.to("cpu")
    assert torch.isfinite(model(stream[2])).all()


def test_forward_hooks_see_the_logits() -> None:
    model, seen = made("tent"), []
    model.register_forward_hook(lambda module, inputs, logits: seen.append(logits))
    logits = model(textbook.batches((8,))[0])
    assert torch.equal(seen[0], logits)
