"""Who calls an adapter, from which mode and thread, with which kind of network."""

from __future__ import annotations

import copy
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor, nn

import cretta
import textbook
from adapters import METHODS, AnyAdapter, Output, adapted, buffer_of, everything, in_a_new_process, tensors
from cretta.errors import BatchError, BusyError, OptionError, StateError
from cretta.method import Facts, Objective
from processes import LONG

# Whoever calls.


def expected_run(method: str, net: nn.Module, stream: list[Tensor]) -> list[Tensor]:
    model = adapted(method, net, lr=1e-2)
    return [model(x) for x in stream]


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_callers_without_gradients(method: str, mode: Callable[[], Any]) -> None:
    net, stream = textbook.small_net(), textbook.batches()
    expected = expected_run(method, net, stream)
    with mode():
        model = adapted(method, net, lr=1e-2)
        inside = [model(x) for x in stream]
        model.predict(stream[0])
        model.reset()
        again = [model(x) for x in stream]
    assert all(torch.equal(a, b) for a, b in zip(inside, expected, strict=True))
    assert all(torch.equal(a, b) for a, b in zip(again, expected, strict=True))
    assert torch.is_grad_enabled()


@pytest.mark.parametrize("method", [*METHODS, "source", "bn_adapt"])
@pytest.mark.parametrize("statistics", ["batch", "moving"])
def test_everything_made_in_inference_mode(method: str, statistics: str) -> None:
    """Network, buffer, batches and adapter; then used inside and outside in turns."""
    model = adapted(method, lr=1e-2, statistics=statistics)
    expected = [model(x) for x in textbook.batches()]
    with torch.inference_mode():
        net = textbook.small_net()
        assert next(net.parameters()).is_inference()
        buffer = buffer_of()
        stream = textbook.batches()
        assert stream[0].is_inference()
        inside = adapted(method, net, buffer=buffer, lr=1e-2, statistics=statistics)
    for k, x in enumerate(stream):
        with torch.inference_mode(k % 2 == 0):
            assert torch.equal(inside(x), expected[k])
            inside.predict(x)
            inside.state.snapshot()
    with torch.inference_mode():
        inside.reset()
    assert torch.equal(inside(stream[0]), expected[0])


def test_a_batch_that_requires_grad() -> None:
    net, stream = textbook.small_net(), textbook.batches()
    expected = expected_run("cretta", net, stream)
    model = adapted("cretta", net, lr=1e-2)
    for x, wanted in zip(stream, expected, strict=True):
        x.requires_grad_()
        logits = model(x)
        assert torch.equal(logits, wanted)
        assert not logits.requires_grad
        assert not model.predict(x).requires_grad
        assert x.grad is None


def test_a_batch_is_left_as_it_is() -> None:
    x = textbook.batches((8,))[0]
    kept, version = x.clone(), x._version
    model = adapted("cretta")
    logits = model(x)
    logits.zero_()
    assert torch.equal(x, kept)
    assert x._version == version
    assert x.is_contiguous()


@pytest.mark.parametrize("statistics", ["batch", "mixture", "moving", "running"])
@pytest.mark.parametrize("method", METHODS)
def test_autocast(method: str, statistics: str) -> None:
    net, stream = textbook.small_net(), textbook.batches()
    single = adapted(method, net, lr=1e-3, statistics=statistics)
    expected = [single(x) for x in stream]
    model = adapted(method, net, lr=1e-3, statistics=statistics)
    with torch.autocast("cpu", torch.bfloat16):
        got = [model(x) for x in stream]
        model.predict(stream[0])
    assert not all(torch.equal(a, b) for a, b in zip(got, expected, strict=True))
    for a, b in zip(got, expected, strict=True):
        assert a.dtype == torch.float32
        assert (a - b).abs().max() < 0.15
    assert model.last.adapted
    for name, parameter in model.model.module.named_parameters():
        assert parameter.dtype == torch.float32
        if name.startswith("bn"):
            assert not torch.equal(parameter, net.get_parameter(name))
    for name, value in model.state.snapshot().items():
        assert not name.startswith(("parameters", "statistics", "optimizer")) or value.dtype == torch.float32, name


class Whole(cretta.Adapter):
    """Learns all parameters."""

    name = "whole"
    facts = Facts(updates="all", statistics="batch", logits="after")

    def objective(self, x: Tensor) -> Objective:
        logits = self.model(x)
        return Objective(cretta.functional.entropy(logits).mean(), logits)


def test_a_class_is_as_good_as_a_name() -> None:
    x = textbook.batches((8,))[0]
    model = cretta.adapt(textbook.small_net(), Whole, lr=1e-2)
    assert type(model) is Whole
    assert torch.equal(model(x), Whole(textbook.small_net(), lr=1e-2)(x))
    by_class = cretta.adapt(textbook.small_net(), cretta.CreTTA, buffer=buffer_of(), preset="cifar10+fast", beta=2.0)
    by_name = adapted("cretta", preset="cifar10+fast", beta=2.0)
    assert by_class.options == by_name.options
    assert torch.equal(by_class(x), by_name(x))


def test_a_class_that_is_no_method_is_refused() -> None:
    class Nameless(cretta.Adapter):
        facts = Whole.facts

    with pytest.raises(OptionError, match=r"the class dict; expected the name of a method, or a subclass of cretta\."):
        cretta.adapt(textbook.small_net(), dict)  # type: ignore[arg-type]
    with pytest.raises(OptionError, match=r"Nameless is not a method: it has no name.*set name and facts"):
        cretta.adapt(textbook.small_net(), Nameless)
    with pytest.raises(OptionError, match="Adapter is not a method"):
        cretta.adapt(textbook.small_net(), cretta.Adapter)
    with pytest.raises(OptionError, match="unknown method 3"):
        cretta.adapt(textbook.small_net(), 3)  # type: ignore[arg-type]
    with pytest.raises(OptionError, match="busy='never': expected one of 'wait', 'raise'"):
        adapted("tent", busy="never")


def test_a_method_may_learn_everything() -> None:
    net, stream = textbook.small_net(dtype=torch.float64), textbook.batches(dtype=torch.float64)
    theta = textbook.batch_statistics(net).requires_grad_(True)
    stepper = torch.optim.Adam(theta.parameters(), 1e-2)
    model = Whole(net, lr=1e-2)
    kept = tensors(net)
    for x in stream:
        stepper.zero_grad()
        textbook.entropy(theta(x)).mean().backward()
        stepper.step()
        torch.testing.assert_close(model(x), theta(x).detach(), rtol=1e-7, atol=1e-7)
    textbook.assert_bits(tensors(net), kept)


def test_under_one_autocast_every_batch_teaches_every_parameter() -> None:
    """autocast keeps the half-precision copies of weights; one made without gradients would cut them off."""
    net = textbook.small_net()
    model = Whole(net, lr=1e-2)
    with torch.autocast("cpu", torch.bfloat16):
        for x in textbook.batches():
            model.predict(x)
            model(x)
            slopes = {n: p.grad.abs().sum() for n, p in model.model.module.named_parameters() if p.grad is not None}
            assert len(slopes) == len(list(net.parameters()))
            assert [n for n, slope in slopes.items() if not slope > 0] == []


def test_under_one_autocast_a_reset_is_seen() -> None:
    model = Whole(textbook.small_net(), lr=0.1)
    x = textbook.batches((8,))[0]
    with torch.autocast("cpu", torch.bfloat16):
        first = model.predict(x)
        after = model(x)
        model.reset()
        again = model.predict(x)
    assert not torch.equal(first, after)
    assert torch.equal(again, first)


def test_deterministic_algorithms_are_no_obstacle() -> None:
    torch.use_deterministic_algorithms(True)
    try:
        model = adapted("cretta", lr=1e-2, weighting="uniform", statistics="moving")
        assert all(torch.isfinite(model(x)).all() for x in textbook.batches())
    finally:
        torch.use_deterministic_algorithms(False)


# Threads.


class Gate:
    """Shared by all copies of a network: lets one forward wait until it is told to go on."""

    armed = False
    entered = threading.Event()
    opened = threading.Event()


class Waiting(textbook.SmallNet):
    def forward(self, x: Tensor) -> Tensor:
        z = super().forward(x)
        if Gate.armed:
            Gate.armed = False
            Gate.entered.set()
            assert Gate.opened.wait(LONG)
        return z


@pytest.fixture
def gate() -> Iterator[type[Gate]]:
    Gate.entered, Gate.opened, Gate.armed = threading.Event(), threading.Event(), True
    yield Gate
    Gate.opened.set()
    Gate.armed = False


def test_two_threads_at_once(gate: type[Gate], tmp_path: Path) -> None:
    first, second, third = textbook.batches((8, 8, 8))
    undisturbed = adapted("cretta", lr=1e-2, statistics="moving")
    expected = [undisturbed(x) for x in (first, second)]
    net = Waiting()
    net.load_state_dict(textbook.small_net().state_dict())
    model = adapted("cretta", net, lr=1e-2, statistics="moving", busy="raise")
    answers: list[Tensor] = []
    thread = threading.Thread(target=lambda: answers.append(model(first)))
    thread.start()
    assert gate.entered.wait(LONG)
    uses: list[Callable[[], object]] = [
        lambda: model(third),
        lambda: model.predict(third),
        model.reset,
        lambda: model.save(tmp_path / "state.safetensors"),
        lambda: model.restore(tmp_path / "state.safetensors"),
    ]
    for use in uses:
        with pytest.raises(BusyError, match=r"another thread.*Nothing was changed"):
            use()
    gate.opened.set()
    thread.join(LONG)
    assert not thread.is_alive()
    assert len(answers) == 1
    assert torch.equal(answers[0], expected[0])
    assert torch.equal(model(second), expected[1])
    textbook.assert_bits(model.state.snapshot(), undisturbed.state.snapshot())


class Announced:
    """A lock that says when somebody begins to wait for it."""

    def __init__(self) -> None:
        self.lock, self.waiting = threading.Lock(), threading.Event()

    def acquire(self, blocking: bool) -> bool:
        if self.lock.acquire(blocking=False):
            return True
        self.waiting.set()
        return blocking and self.lock.acquire()

    def release(self) -> None:
        self.lock.release()


@pytest.mark.parametrize("use", ["predict", "call", "save"])
def test_others_wait_while_a_thread_adapts(gate: type[Gate], use: str, tmp_path: Path) -> None:
    """And find the model as that batch left it."""
    first, second = textbook.batches((8, 8))
    undisturbed = adapted("cretta", lr=1e-2)
    undisturbed(first)
    net = Waiting()
    net.load_state_dict(textbook.small_net().state_dict())
    model = adapted("cretta", net, lr=1e-2)
    model._busy = lock = Announced()  # type: ignore[assignment]
    uses: dict[str, Callable[[AnyAdapter, str], object]] = {
        "predict": lambda one, name: one.predict(second),
        "call": lambda one, name: one(second),
        "save": lambda one, name: one.save(tmp_path / name),
    }
    answers: list[object] = []
    adapting = threading.Thread(target=lambda: model(first))
    adapting.start()
    assert gate.entered.wait(20)
    other = threading.Thread(target=lambda: answers.append(uses[use](model, "waited")))
    other.start()
    assert lock.waiting.wait(20)
    assert answers == []
    gate.opened.set()
    for thread in (adapting, other):
        thread.join(20)
        assert not thread.is_alive()
    (answer,) = answers
    expected = uses[use](undisturbed, "undisturbed")
    if use == "save":
        parts = [load_file(tmp_path / name) for name in ("waited", "undisturbed")]
        assert torch.equal(parts[0]["parameters.0"], parts[1]["parameters.0"])
    else:
        assert isinstance(answer, Tensor)
        assert isinstance(expected, Tensor)
        assert torch.equal(answer, expected)
    textbook.assert_bits(model.state.snapshot(), undisturbed.state.snapshot())


@pytest.mark.parametrize("busy", ["wait", "raise"])
def test_a_network_that_calls_its_own_adapter_is_told_so(busy: str) -> None:
    """In one thread, waiting would never end."""
    model = adapted("tent", busy=busy)
    x = textbook.batches((8,))[0]
    before = everything(model)
    handle = model.model.module.get_submodule("fc").register_forward_hook(lambda *_: model.predict(x))
    with pytest.raises(BusyError, match=r"in this very thread.*Nothing was changed"):
        model(x)
    textbook.assert_bits(everything(model), before)
    handle.remove()
    model(x)


def test_an_error_does_not_leave_it_busy() -> None:
    model = adapted("cretta")
    for _ in range(2):
        with pytest.raises(BatchError):
            model(torch.zeros(0, 3, 8, 8))
        with pytest.raises(BatchError):
            model.predict(torch.zeros(0, 3, 8, 8))
        with pytest.raises(StateError):
            model.restore("nowhere.safetensors")
    model(textbook.batches((8,))[0])


def test_adapters_of_one_network_do_not_meet() -> None:
    net, buffer, stream = textbook.small_net(), buffer_of(), textbook.batches()
    expected = expected_run("cretta", net, stream)
    one, other, third = (adapted(m, net, buffer=buffer, lr=1e-2) for m in ("cretta", "cretta", "tent"))
    for x, wanted in zip(stream, expected, strict=True):
        assert torch.equal(one(x), wanted)
        third(x)
        assert torch.equal(other(x), wanted)


# Kinds of networks.


class Vit(nn.Module):
    """Patches, a class token, LayerNorm and MultiheadAttention."""

    def __init__(self, width: int = 16, classes: int = 5) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, width, 4, stride=4)
        self.token = nn.Parameter(torch.randn(1, 1, width))
        self.position = nn.Parameter(torch.randn(1, 5, width) / 2)
        self.norm1, self.norm2, self.norm = nn.LayerNorm(width), nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention = nn.MultiheadAttention(width, 4, dropout=0.3, batch_first=True)
        self.mlp = nn.Sequential(nn.Linear(width, 2 * width), nn.GELU(), nn.Dropout(0.3), nn.Linear(2 * width, width))
        self.head = nn.Linear(width, classes)

    def forward(self, x: Tensor) -> Tensor:
        x = self.patches(x).flatten(2).transpose(1, 2)
        x = torch.cat([self.token.expand(len(x), -1, -1), x], 1) + self.position
        y = self.norm1(x)
        x = x + self.attention(y, y, y, need_weights=False)[0]
        x = x + self.mlp(self.norm2(x))
        logits: Tensor = self.head(self.norm(x)[:, 0])
        return logits


def convolutional(norm: nn.Module, dimensions: int = 2) -> nn.Module:
    conv = {1: nn.Conv1d, 2: nn.Conv2d, 3: nn.Conv3d}[dimensions]
    pool = {1: nn.AdaptiveAvgPool1d, 2: nn.AdaptiveAvgPool2d, 3: nn.AdaptiveAvgPool3d}[dimensions]
    return nn.Sequential(conv(3, 8, 3), norm, nn.ReLU(), pool(1), nn.Flatten(), nn.Linear(8, 5))


class Named(nn.Module):
    """Answers as a Hugging Face model does, or with a dictionary."""

    def __init__(self, kind: Callable[[Tensor], object]) -> None:
        super().__init__()
        self.net = textbook.small_net()
        self.kind = kind

    def forward(self, x: Tensor) -> object:
        return self.kind(self.net(x))


KINDS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "BatchNorm1d on features": (
        lambda: nn.Sequential(nn.Linear(7, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 5)),
        (7,),
    ),
    "BatchNorm1d on sequences": (lambda: convolutional(nn.BatchNorm1d(8), 1), (3, 9)),
    "BatchNorm2d": (lambda: convolutional(nn.BatchNorm2d(8)), (3, 8, 8)),
    "BatchNorm3d": (lambda: convolutional(nn.BatchNorm3d(8), 3), (3, 5, 5, 5)),
    "GroupNorm": (lambda: convolutional(nn.GroupNorm(2, 8)), (3, 8, 8)),
    "LayerNorm": (lambda: convolutional(nn.LayerNorm([8, 6, 6])), (3, 8, 8)),
    "LayerNorm without bias": (lambda: convolutional(nn.LayerNorm([8, 6, 6], bias=False)), (3, 8, 8)),
    "InstanceNorm": (lambda: convolutional(nn.InstanceNorm2d(8, affine=True)), (3, 8, 8)),
    "InstanceNorm with running statistics": (
        lambda: convolutional(nn.InstanceNorm2d(8, affine=True, track_running_stats=True)),
        (3, 8, 8),
    ),
    "RMSNorm": (lambda: convolutional(nn.RMSNorm([6, 6])), (3, 8, 8)),
    "a transformer": (Vit, (3, 8, 8)),
    "a GroupNorm ResNet": (lambda: cretta.models.ResNet(8, classes=5, width=8, norm="group"), (3, 8, 8)),
    "a BatchNorm ResNet": (lambda: cretta.models.ResNet(8, classes=5, width=8), (3, 8, 8)),
    "an output object": (lambda: Named(lambda z: Output(z)), (3, 8, 8)),
    "an output dictionary": (lambda: Named(lambda z: {"logits": z, "hidden": None}), (3, 8, 8)),
    "a norm layer alone": (lambda: nn.BatchNorm1d(5), (5,)),
}


@pytest.mark.parametrize("name", KINDS)
@pytest.mark.parametrize("method", METHODS)
def test_kinds_of_networks_adapt(method: str, name: str) -> None:
    build, shape = KINDS[name]
    with torch.random.fork_rng():
        torch.manual_seed(0)
        net = build()
        data = [torch.rand(6, *shape) for _ in range(3)]
        buffer = cretta.SourceBuffer(torch.rand(10, *shape), augment="none")
    textbook.settle(net, data)
    net.train()
    values = tensors(net)
    # GroupNorm in channels-last memory can end the process; it has a test in one of its own.
    model = adapted(method, net, buffer=buffer, lr=1e-2, channels_last="GroupNorm" not in name)
    for x in data:
        logits = model(0.5 * x + 0.5)
        assert logits.shape == (6, 5)
        assert torch.isfinite(logits).all()
        assert model.last.adapted, model.last.reason
    names = model.learnable.names
    norms = [n for n, m in net.named_modules() if "Norm" in type(m).__name__ and list(m.parameters(recurse=False))]
    assert len(names) == sum(len(list(net.get_submodule(n).parameters(recurse=False))) for n in norms)
    for n, parameter in model.model.module.named_parameters():
        layer = n.rpartition(".")[0]
        if layer in norms:
            assert not torch.equal(parameter, values[n]), f"{n} did not move"
            assert torch.isfinite(parameter).all()
        else:
            assert torch.equal(parameter, values[n]), f"{n} moved"
            assert parameter.grad is None
    textbook.assert_bits(tensors(net), values)
    before = {n: p.detach().clone() for n, p in model.model.module.named_parameters()}
    model.reset()
    assert any(not torch.equal(p, before[n]) for n, p in model.model.module.named_parameters())
    textbook.assert_bits(
        {n: p.detach() for n, p in model.model.module.named_parameters()},
        {n: v for n, v in values.items() if n in before},
    )


def group_norm_in_channels_last() -> None:
    """Runs in a process of its own: a network that begins convolution, GroupNorm, in the layout of the default."""
    torch.set_num_threads(1)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        net = cretta.models.ResNet(8, classes=5, width=8, norm="group")
    for method in METHODS:
        last, first = (adapted(method, net, lr=1e-2, channels_last=flag) for flag in (True, False))
        for x in textbook.batches():
            torch.testing.assert_close(last(x), first(x), rtol=1e-4, atol=1e-4)
            x = x.contiguous(memory_format=torch.channels_last)  # a caller may come with it too
            torch.testing.assert_close(last(x), first(x), rtol=1e-4, atol=1e-4)
        assert last.last.adapted


@pytest.mark.process
def test_group_norm_in_channels_last() -> None:
    """torch's CPU kernel crashes where γ learns, the input does not ask for a gradient and lies channels-last."""
    in_a_new_process("import test_adapter_callers; test_adapter_callers.group_norm_in_channels_last()")


@pytest.mark.parametrize("kind", ["an output object", "an output dictionary"])
def test_output_objects_give_the_same_logits(kind: str) -> None:
    stream = textbook.batches()
    model = adapted("cretta", KINDS[kind][0](), lr=1e-2)
    plain = adapted("cretta", textbook.small_net(), lr=1e-2)
    assert all(torch.equal(model(x), plain(x)) for x in stream)


def test_a_transformer_equals_a_plain_loop() -> None:
    """LayerNorm has no statistics to exchange: TENT is a plain training loop on γ and β, dropout disabled."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        net = Vit().double()
    textbook.settle(net, textbook.source_images(16, dtype=torch.float64).split(8))
    theta = copy.deepcopy(net).eval().requires_grad_(False)
    learning = [p for m in theta.modules() if isinstance(m, nn.LayerNorm) for p in m.parameters()]
    for p in learning:
        p.requires_grad_(True)
    stepper = torch.optim.Adam(learning, 1e-2)
    model = cretta.adapt(net.train(), "tent", lr=1e-2)
    for x in textbook.batches(dtype=torch.float64):
        logits = theta(x)
        stepper.zero_grad()
        textbook.entropy(logits).mean().backward()
        stepper.step()
        torch.testing.assert_close(model(x), logits.detach(), rtol=1e-7, atol=1e-7)


def test_skipping_the_end_of_a_transformer() -> None:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        net = Vit()
    model = adapted("tent", net, skip=("norm2", "norm"), lr=1e-2)
    model(textbook.batches((8,))[0])
    assert model.learnable.names == ("norm1.weight", "norm1.bias")
