from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.profiler import ProfilerActivity, profile
from torch.utils.flop_counter import FlopCounterMode

import cretta
import textbook
from cretta.errors import BatchError, OptionError
from cretta.metrics import count_operations
from cretta.metrics.memory import StoragePeak
from cretta.models.wide_resnet import WideResNet
from step_memory import peak_memory

AnyAdapter = cretta.Adapter[Any]
GPU = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
SIZE = 8
WIDTH = 4
# Multiply-accumulates of textbook.SmallNet for an image of 8 × 8, and elements of its norm layers and of its pooling.
CONV1 = 3 * WIDTH * 9 * 64
CONV2 = WIDTH * 2 * WIDTH * 9 * 16
LINEAR = 2 * WIDTH * textbook.CLASSES
NORM = WIDTH * 64 + 2 * WIDTH * 16
POOL = 2 * WIDTH * 16
FORWARD = 2 * (CONV1 + CONV2 + LINEAR)
# To γ and β of the first norm layer, past frozen weights: no gradient of a weight, none of the first layer's input.
BACK = 2 * (CONV2 + LINEAR)
RUNNING = FORWARD + (2 + 1) * NORM + POOL
BATCH = FORWARD + (5 + 1) * NORM + POOL
OPTIONS: dict[str, dict[str, Any]] = {
    "pl": {"threshold": 0.0},
    "eta": {"entropy_margin": 10.0, "redundancy_margin": 2.0},
    "eata": {"entropy_margin": 10.0, "redundancy_margin": 2.0},
    "sar": {"entropy_margin": 10.0, "reset_below": 0.0},
    "tea": {"sampling_steps": 2, "replay": 30},
}
"""Lenient enough for an untrained network's predictions to pass every filter."""
BUFFERED = 20


def adapter(method: str, net: nn.Module | None = None, **options: Any) -> AnyAdapter:
    buffer = options.pop("buffer", None) or cretta.SourceBuffer(textbook.source_images(BUFFERED), augment="none")
    net = net if net is not None else textbook.small_net(width=WIDTH)
    return cretta.adapt(net, method, buffer=buffer, **(OPTIONS.get(method, {}) | options))


def batch(size: int = SIZE) -> Tensor:
    return textbook.batches((size,))[0]


def flops(model: AnyAdapter, x: Tensor, **options: Any) -> int:
    return count_operations(model, x, **options).total


def paper_flops(model: AnyAdapter | nn.Module, x: Tensor, **options: Any) -> int:
    model = model if isinstance(model, cretta.Adapter) else cretta.adapt(model, "source")
    return count_operations(model, x, **options).forward


# Operations, forward and backward.


@pytest.mark.parametrize("method", ["eta", "eata"])
def test_a_step_counts_that_learns(method: str) -> None:
    """A batch that these methods have just seen is redundant, and skipped: as much as a forward pass."""
    strict = adapter(method, redundancy_margin=1e-6)
    strict(batch())
    strict(batch())
    assert not strict.last.adapted
    for model in (strict, adapter(method)):
        assert flops(model, batch()) == flops(adapter("tent"), batch())
    # What is never learned from has no other cost.
    assert flops(adapter(method, entropy_margin=1e-9), batch()) == flops(adapter("bn_adapt"), batch())


@pytest.mark.parametrize("every", [2, 3])
@pytest.mark.slow
def test_batches_that_are_only_predicted_count_with_the_one_that_learns(every: int) -> None:
    for taken in range(every):  # wherever in the turn the adapter is
        model = adapter("tent", adapt_every=every)
        for _ in range(taken):
            model(batch())
        assert flops(model, batch()) == round(SIZE * (FORWARD + BACK / every))
        assert paper_flops(model, batch()) == SIZE * BATCH
        assert flops(model, batch(), scale_to=600) == round(600 * (FORWARD + BACK / every))
        # It also marks where it was once more, a few numbers.
        assert peak_memory(model, batch()) == pytest.approx(peak_memory(adapter("tent"), batch()), abs=512)


SAMPLING = 2 * 2 * FORWARD  # two steps, each forward and back to the image
STEADY = {
    "source": FORWARD,
    "bn_adapt": FORWARD,
    "tent": FORWARD + BACK,
    "shot": FORWARD + BACK,
    "eta": FORWARD + BACK,
    "eata": FORWARD + BACK,
    "sar": 2 * (FORWARD + BACK),
    "pl": FORWARD + 2 * (CONV1 + 2 * CONV2 + 2 * LINEAR),  # the weights' gradients as well
    "cretta": FORWARD + 2 * (FORWARD + BACK) + FORWARD,
    "tea": SAMPLING + 2 * (FORWARD + BACK) + FORWARD,
}


@pytest.mark.parametrize("method", STEADY)
def test_flops_by_hand(method: str) -> None:
    assert flops(adapter(method), batch()) == SIZE * STEADY[method]


@pytest.mark.parametrize("method", ["source", "tent", "cretta", "pl"])
def test_agrees_with_the_counter_of_torch(method: str) -> None:
    model, x = adapter(method), batch()
    for _ in range(2):
        model(x)
    expected = FlopCounterMode(display=False)
    with expected:
        model(x)
    assert flops(model, x) == expected.get_total_flops()


@pytest.mark.parametrize("method", sorted(set(cretta.methods.names()) - set(STEADY)))
def test_flops_of_other_methods(method: str) -> None:
    # Some multiply logits with class weights or each other, which is little.
    forwards, backwards = cretta.methods.get(method).facts.forwards, cretta.methods.get(method).facts.backwards
    expected = SIZE * (forwards * FORWARD + backwards * BACK)
    assert flops(adapter(method), batch()) == pytest.approx(expected, rel=0.01)


@pytest.mark.parametrize(
    ("method", "once"), [("tent", 0), ("cretta", BUFFERED * FORWARD), ("eata", BUFFERED * (FORWARD + BACK))]
)
def test_the_first_step_has_more_to_do(method: str, once: int) -> None:
    fresh = adapter(method)
    assert flops(fresh, batch(), steady=False) == SIZE * STEADY[method] + once
    # Measuring left nothing behind that would spare the adapter's own first step.
    assert flops(fresh, batch(), steady=False) == SIZE * STEADY[method] + once
    fresh(batch())
    assert flops(fresh, batch()) == SIZE * STEADY[method]


def test_steady_is_measured_past_the_first_source_samples() -> None:
    # 200 source images are four blocks of energies, and every batch reads others.
    many = cretta.SourceBuffer(textbook.source_images(200), augment="none")
    assert flops(adapter("cretta", buffer=many), batch(64)) == 64 * STEADY["cretta"]


def test_options_change_the_cost() -> None:
    one = STEADY["tent"]
    assert flops(adapter("tent", steps=3), batch()) == SIZE * 3 * one
    assert flops(adapter("tent", predict="after"), batch()) == SIZE * (one + FORWARD)
    assert flops(adapter("cretta", predict="before"), batch()) == SIZE * (STEADY["cretta"] - FORWARD)
    assert flops(adapter("tent", guard="warn"), batch()) == SIZE * (one + 2 * FORWARD)
    # Without the first norm layer there is nothing to go back to beyond the second.
    assert flops(adapter("tent", skip=("bn1",)), batch()) == SIZE * (FORWARD + 2 * LINEAR)


def test_a_step_left_out_costs_a_forward() -> None:
    assert flops(adapter("pl", threshold=0.9999999), batch()) == SIZE * FORWARD


# Operations as the paper counts them.

PAPER = {
    "source": RUNNING,
    "bn_adapt": BATCH,
    "tent": BATCH,
    "shot": BATCH,
    "eta": BATCH,
    "eata": BATCH,
    "sar": 2 * BATCH,
    "aea": BATCH,
    "pl": RUNNING,
    "cretta": 3 * BATCH + RUNNING,
    "tea": (2 + 2 + 1) * BATCH,
}


@pytest.mark.parametrize("method", PAPER)
def test_paper_flops_by_hand(method: str) -> None:
    assert paper_flops(adapter(method), batch()) == SIZE * PAPER[method]


def test_paper_flops_of_a_network_are_those_of_source() -> None:
    net = textbook.small_net(width=WIDTH).train()
    before = {name: value.clone() for name, value in net.state_dict().items()}
    assert paper_flops(net, batch()) == SIZE * RUNNING
    textbook.assert_bits(net.state_dict(), before)
    assert net.training


def test_augmentations_are_not_a_network() -> None:
    rotated = cretta.SourceBuffer(textbook.source_images(BUFFERED), augment="rotate")
    assert paper_flops(adapter("cretta", buffer=rotated), batch()) == SIZE * (3 * BATCH + RUNNING)


WRN = 200 * (2 * (327_598_080 + 1280) + 3 * 704_512 + 344_064 + 8192)
"""Source on WRN-40-2: two a multiply-accumulate, three an element normalized and activated, one an element added or
pooled, as counted layer by layer from the architecture."""
WRN_STATISTICS = 200 * 3 * 704_512
"""What the statistics of a batch add to a forward."""


@pytest.fixture(scope="module")
def wide_resnet() -> WideResNet:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return WideResNet(40, 2, mean=(0.5, 0.5, 0.5), std=(0.5, 0.5, 0.5)).eval()


def images(count: int, side: int = 32) -> Tensor:
    return torch.rand(count, 3, side, side, generator=torch.Generator().manual_seed(0))


def test_source_is_the_papers_number_and_linear_in_the_batch(wide_resnet: WideResNet) -> None:
    counts = {size: paper_flops(wide_resnet, images(size), scale_to=200) for size in (1, 2, 3)}
    assert counts == dict.fromkeys((1, 2, 3), WRN)
    assert pytest.approx(131.53, abs=0.005) == WRN / 1e9
    assert paper_flops(wide_resnet, images(2)) * 100 == WRN


@pytest.mark.parametrize(
    ("method", "by_batch", "by_training"), [("bn_adapt", 1, 0), ("tent", 1, 0), ("cretta", 3, 1), ("tea", 5, 0)]
)
def test_methods_as_the_paper_counts(wide_resnet: WideResNet, method: str, by_batch: int, by_training: int) -> None:
    model = adapter(method, wide_resnet, buffer=cretta.SourceBuffer(images(4), augment="none"))
    operations = paper_flops(model, images(2), scale_to=200)
    assert operations == by_batch * (WRN + WRN_STATISTICS) + by_training * WRN
    if method == "cretta":
        assert operations / 1e9 == pytest.approx(527.40, abs=0.005)


def test_what_is_said_of_the_papers_other_numbers() -> None:
    forward = (WRN + WRN_STATISTICS) / 1e9
    assert forward == pytest.approx(131.96, abs=0.005)
    # TEA has 20 forwards in sampling and 3 more, not 5 as above.
    assert cretta.methods.get("tea").facts.forwards == 23
    assert 23 * forward == pytest.approx(3034.98, abs=0.005)
    assert 4335.82 / forward == pytest.approx(32.9, abs=0.05)
    for number in ("131.96", "3034.98", "32.9"):
        assert number in str(count_operations.__doc__)


class Odd(nn.Module):
    """What networks are made of elsewhere, each once; 8 channels of 4 × 4 after the stem."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 8, 2, stride=2)
        self.group = nn.GroupNorm(2, 8)
        self.plain = nn.BatchNorm2d(8, affine=False)
        self.layer = nn.LayerNorm(8)
        self.head = nn.Linear(8, 5)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)  # 2 · 3 · 4 · 8 · 16
        x = F.relu(self.group(x), inplace=True)  # (5 + 1) · 128
        x += F.silu(x)  # (1 + 1) · 128
        x = self.plain(x) * torch.sigmoid(x)  # (1 + 1 + 1) · 128
        x = F.max_pool2d(x, 2)  # 128
        tokens = x.flatten(2).transpose(1, 2)  # 4 tokens of 8
        shares = (tokens @ tokens.transpose(1, 2)).softmax(-1)  # 2 · 4 · 8 · 4 + 16
        tokens = F.gelu(self.layer(shares @ tokens))  # 2 · 4 · 4 · 8 + (5 + 1) · 32
        logits: Tensor = self.head(tokens.mean(1))  # 32 + 2 · 8 · 5
        return logits


ODD = 2 * 96 * 16 + 6 * 128 + 2 * 128 + 3 * 128 + 128 + (256 + 16) + (256 + 6 * 32) + 32 + 80


def test_functional_in_place_and_operator_forms_count() -> None:
    assert paper_flops(Odd(), images(3, side=8)) == 3 * ODD


@pytest.mark.parametrize("form", ["traced", "exported"])
def test_traced_and_exported_networks_count_too(form: str) -> None:
    net, x = textbook.small_net(width=WIDTH), batch()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of what PyTorch thinks of its own
        if form == "traced":
            made: nn.Module = torch.jit.trace(net, x)
        else:
            made = torch.export.export(net, (x,)).module()
        assert paper_flops(made, x) == SIZE * RUNNING


@pytest.mark.parametrize("scale_to", [0, -1, 200.0, True, "200"])
def test_wrong_scales(scale_to: Any) -> None:
    with pytest.raises(OptionError, match=r"scale_to=.*an integer, at least 1"):
        count_operations(adapter("source"), batch(), scale_to=scale_to)


# Memory. A float takes 4 bytes.


def test_a_forward_and_backward_pass_by_hand() -> None:
    x, weight = torch.randn(100, 50), torch.randn(30, 50, requires_grad=True)
    with StoragePeak() as meter:
        hidden = F.linear(x, weight)
        assert meter.now == 100 * 30 * 4
        active = torch.relu(hidden)
        assert meter.now == 2 * 100 * 30 * 4
        del hidden
        # The graph saves the output of the activation, not its input.
        assert meter.now == 100 * 30 * 4
        loss = active.sum()
        del active
        assert meter.now == 100 * 30 * 4 + 4
        assert meter.peak == 2 * 100 * 30 * 4
        loss.backward()
        # Left are the loss, and a gradient as large as the weight.
        assert meter.now == 4 + 30 * 50 * 4
    # Most is alive when the activation's gradient has been made: it, the activation, the loss and the loss's gradient.
    assert meter.peak == 2 * 100 * 30 * 4 + 4 + 4


def test_what_is_saved_for_the_backward_pass_counts_and_is_freed_by_it() -> None:
    x = torch.randn(1000, requires_grad=True)
    with StoragePeak() as meter:
        y = x
        for _ in range(10):
            y = y.exp()
        assert meter.now == 10 * 4000
        with torch.no_grad():
            for _ in range(10):
                x.exp().exp()
        assert meter.now == 10 * 4000
        # The two in the middle of x.exp().exp() are alive at once.
        assert meter.peak == 12 * 4000
        (gradient,) = torch.autograd.grad(y.sum(), x)
        assert meter.now == 2 * 4000  # y and the gradient
        del y, gradient
        assert meter.now == 0


def test_views_and_in_place_operations_take_nothing() -> None:
    x = torch.zeros(10, 100)
    with StoragePeak() as meter:
        x.add_(1).mul_(2)
        x.view(-1).t().unsqueeze(0).expand(5, -1)
        assert meter.peak == 0
        y = x + 1
        assert meter.now == 4000
        part = y.view(-1)[:1]
        y += 1
        y.copy_(x)
        del y
        # A view of one element holds the storage of all.
        assert meter.now == meter.peak == 4000
        del part
        assert meter.now == 0


def test_the_size_is_that_of_the_type() -> None:
    with StoragePeak() as meter:
        tensors = [torch.zeros(10, dtype=dtype) for dtype in (torch.float64, torch.float16, torch.uint8)]
        assert meter.now == 10 * (8 + 2 + 1)
        pair = torch.zeros(6).max(0)
    # Two numbers, of 4 and of 8 bytes, above the 24 that the maximum is taken of.
    assert meter.peak == 110 + 24 + 4 + 8
    del tensors, pair


def test_after_the_end_nothing_is_watched() -> None:
    with StoragePeak() as meter:
        y = torch.zeros(100)
    torch.zeros(1000)
    assert (meter.now, meter.peak) == (400, 400)
    del y
    assert meter.now == 400


def allocated(act: Callable[[], object]) -> int:
    """The peak that PyTorch's profiler saw at the allocator, which knows nothing of tensors."""
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as seen:
        act()
    results = seen.profiler.kineto_results if seen.profiler is not None else None
    assert results is not None
    events = [event for event in results.events() if event.name() == "[memory]"]
    now = peak = 0
    for event in sorted(events, key=lambda event: event.start_ns()):
        now += event.nbytes()
        peak = max(peak, now)
    return peak


def test_agrees_with_the_allocator() -> None:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(64, 40, generator=generator)
    weights = [torch.randn(40, 40, generator=generator).requires_grad_() for _ in range(6)]

    def act() -> None:
        y = x
        for weight in weights:
            y = torch.relu(y @ weight)
        torch.autograd.grad(y.square().mean(), weights)

    with StoragePeak() as meter:
        act()
    # Apart from a few single numbers, which the allocator also hands out within operations.
    assert meter.peak == pytest.approx(allocated(act), abs=64)


@pytest.mark.parametrize("method", ["source", "tent", "cretta"])
def test_a_step_agrees_with_the_allocator(method: str) -> None:
    # Wide enough for activations to outweigh what convolutions rearrange within themselves.
    x, model = images(16), adapter(method, residual_net(), buffer=cretta.SourceBuffer(images(40), augment="none"))
    for _ in range(2):
        model(x)
    state = model.state.snapshot()
    model(x)
    model.state.restore(state)
    seen = allocated(lambda: model(x))
    assert peak_memory(model, x) == pytest.approx(seen, rel=0.05)


def residual_net() -> WideResNet:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return WideResNet(16, 1).eval()


def norm_elements(net: WideResNet, x: Tensor) -> int:
    """Elements that enter norm layers, an image."""
    counts = []
    hooks = [
        module.register_forward_hook(lambda _, args, __: counts.append(args[0].numel()))
        for module in net.modules()
        if isinstance(module, nn.BatchNorm2d)
    ]
    with torch.no_grad():
        net(x)
    for hook in hooks:
        hook.remove()
    return sum(counts)


@pytest.mark.parametrize(("fuse", "saved"), [(False, 2), (True, 1)])
def test_cretta_has_two_graphs_where_tent_has_one(fuse: bool, saved: int) -> None:
    net, x = residual_net(), images(10)
    buffer = cretta.SourceBuffer(images(20), augment="none")
    # For the backward pass a norm layer saves its input, and an activation its output unless that can be recomputed.
    graph = saved * norm_elements(net, x) * 4
    # And a block has its input, its output and what lies between.
    block = 7 * 10 * 16 * 32 * 32 * 4
    source, tent, two = (
        peak_memory(adapter(method, net, buffer=buffer, fuse=fuse), x) for method in ("source", "tent", "cretta")
    )
    assert source < block
    assert graph < tent < graph + block
    assert 2 * graph < two < 2 * graph + block
    assert two == pytest.approx(2 * tent, rel=0.15)


def test_a_replay_buffer_is_there_before_a_steady_step() -> None:
    replay = 5000 * 3 * 8 * 8 * 4
    first = peak_memory(adapter("tea", replay=5000), batch(), steady=False)
    steady = peak_memory(adapter("tea", replay=5000), batch())
    assert steady < replay < first


@pytest.mark.parametrize("method", cretta.methods.names())
def test_memory_is_the_same_each_time(method: str) -> None:
    assert len({peak_memory(adapter(method), batch()) for _ in range(2)}) == 1


@GPU
def test_memory_of_a_gpu() -> None:
    net, x = residual_net().cuda(), images(10).cuda()
    buffer = cretta.SourceBuffer(images(20), augment="none")
    graph = 2 * norm_elements(net, x) * 4
    tent, two = (peak_memory(adapter(method, net, buffer=buffer), x) for method in ("tent", "cretta"))
    assert graph < tent < two
    assert two - tent > 0.9 * graph


# What counting leaves behind.


def everything(model: AnyAdapter) -> dict[str, Tensor]:
    """All that evolves, all tensors of the adapting network and of the user's, and all gradients."""
    tensors = model.state.snapshot()
    for prefix, module in (("module", model.model.module), ("net", model.net)):
        for name, tensor in [*module.named_parameters(), *module.named_buffers()]:
            tensors[f"{prefix}.{name}"] = tensor.detach().clone()
            if tensor.grad is not None:
                tensors[f"{prefix}.{name}.grad"] = tensor.grad.clone()
    if model._guard is not None:
        tensors |= {f"watch.{name}": value.clone() for name, value in model._guard.snapshot().items()}
    return tensors


@pytest.mark.filterwarnings("ignore::cretta.CollapseWarning")
@pytest.mark.parametrize("guard", [None, "rollback"])
@pytest.mark.parametrize("method", cretta.methods.names())
def test_measuring_leaves_no_trace(method: str, guard: str | None) -> None:
    guard = guard if cretta.methods.get(method).facts.updates != "nothing" else None
    net, stream = textbook.small_net(width=WIDTH), textbook.batches()
    measured, other = (adapter(method, net, guard=guard, lr=1e-2) for _ in range(2))
    count_operations(measured, stream[0])
    assert (measured.last.size, measured.last.reason) == (0, "no batch yet")
    for x in stream:
        before, last = everything(measured), measured.last
        count_operations(measured, stream[-1])
        count_operations(measured, stream[-1], steady=False)
        textbook.assert_bits(everything(measured), before)
        assert measured.last is last
        assert torch.equal(measured(x), other(x))
    textbook.assert_bits(everything(measured), everything(other))


def test_measuring_raises_no_alarm_of_its_own() -> None:
    # pytest makes an error of every warning.
    strict = cretta.Guard(action="warn", classes=1.0, drift=1e-6)
    count_operations(adapter("tent", guard=strict, lr=1.0), batch())


def test_an_adapter_with_the_layers_of_a_preset_that_are_not_there() -> None:
    with pytest.warns(UserWarning, match="layer4"):
        model = cretta.adapt(textbook.small_net(width=WIDTH), "sar", preset="imagenet", entropy_margin=10.0)
    assert (model.options.skip, model.skip) == (("layer4",), ())
    assert flops(model, batch()) == SIZE * STEADY["sar"]


def test_a_count_that_fails_leaves_no_hooks() -> None:
    model = adapter("tent")
    with pytest.raises(BatchError, match="empty"):
        count_operations(model, batch()[:0], steady=False)
    hooks = torch.nn.modules.module._global_forward_pre_hooks, torch.nn.modules.module._global_forward_hooks
    assert [len(registered) for registered in hooks] == [0, 0]
    count_operations(model, batch())
    assert [len(registered) for registered in hooks] == [0, 0]


def test_what_is_not_an_adapter_is_refused() -> None:
    net: Any = textbook.small_net()
    with pytest.raises(OptionError, match=r"expected a cretta.Adapter.*got SmallNet"):
        count_operations(net, batch())
