"""Rewritten networks against the networks they were made from, and networks that are not rewritten."""

from __future__ import annotations

import copy
import threading
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from traced_networks import NETS, Net, Way, assert_close, built, data_dependent, image_batch, learning

import cretta
import textbook
from cretta.accelerate.graph import rewrite
from cretta.network import copy_sharing_parameters
from cretta.normalization import NormStatistics, StreamAverage


def logits_and_gradients(network: nn.Module, module: nn.Module, x: Tensor) -> list[Tensor]:
    parameters = [p for p in module.parameters() if p.requires_grad]
    logits = network(x)
    weights = torch.linspace(0.5, 1.5, logits.numel()).view_as(logits)
    gradients = torch.autograd.grad((logits * weights).square().sum(), parameters, allow_unused=True)
    return [logits.detach(), *(p * 0 if s is None else s for p, s in zip(parameters, gradients, strict=True))]


def assert_learns_alike(network: nn.Module | str, module: nn.Module, x: Tensor) -> None:
    assert isinstance(network, nn.Module)
    expected = logits_and_gradients(module, module, x)
    for one, other in zip(logits_and_gradients(network, module, x), expected, strict=True):
        assert_close(one, other, 2e-5)


def norm_calls(network: nn.Module, x: Tensor) -> int:
    calls = 0
    original = F.batch_norm

    def counted(*args: Any, **named: Any) -> Tensor:
        nonlocal calls
        calls += 1
        return original(*args, **named)

    with pytest.MonkeyPatch.context() as patch, torch.no_grad():
        patch.setattr(F, "batch_norm", counted)
        network(x)
    return calls


# Networks that can be followed.


@pytest.mark.parametrize("statistics", ["batch", "running"])
@pytest.mark.parametrize("case", NETS)
def test_a_network_that_learns_gives_the_same_logits_and_gradients(case: str, statistics: str) -> None:
    module = learning(NETS[case](), statistics)
    network = rewrite(module, learns=True)
    assert isinstance(network, nn.Module)
    for channels_last in (False, True):
        x = image_batch(channels_last)
        before = x.clone()
        assert_learns_alike(network, module, x)
        assert torch.equal(x, before)
        with torch.no_grad():
            assert_close(network(x), module(x), 1e-5)


@pytest.mark.parametrize("statistics", ["batch", "running"])
@pytest.mark.parametrize("case", NETS)
def test_a_network_that_does_not_learn_gives_the_same_logits(case: str, statistics: str) -> None:
    module = copy_sharing_parameters(NETS[case]())
    NormStatistics(module, statistics, StreamAverage())
    network = rewrite(module, learns=False)
    assert isinstance(network, nn.Module)
    for channels_last in (False, True):
        x = image_batch(channels_last)
        before = x.clone()
        with torch.no_grad():
            assert_close(network(x), module(x), 1e-5)
        assert torch.equal(x, before)


def overwritten_before_a_convolution(net: Any, x: Tensor) -> Any:
    out = net.conv1(x)
    normal = torch.relu(net.bn1(out))
    out += 1
    return net.conv2(normal) + out


def overwritten_before_a_sum(net: Any, x: Tensor) -> Any:
    out = net.conv1(x)
    normal = net.bn1(out)
    out += 1
    return torch.relu(normal + out)


@pytest.mark.parametrize("way", [overwritten_before_a_convolution, overwritten_before_a_sum])
@pytest.mark.parametrize("statistics", ["batch", "running"])
def test_an_input_that_is_overwritten_after_its_batch_norm(statistics: str, way: Way) -> None:
    module = copy_sharing_parameters(built(way)())
    NormStatistics(module, statistics, StreamAverage())
    network, x = rewrite(module, learns=False), image_batch(True)
    assert isinstance(network, nn.Module)
    with torch.no_grad():
        assert_close(network(x), module(x), 1e-5)


@pytest.mark.parametrize("statistics", ["batch", "running"])
@pytest.mark.parametrize("case", NETS)
def test_gradients_of_images_are_the_same(case: str, statistics: str) -> None:
    """TEA climbs them, through the network that learns."""
    module = learning(NETS[case](), statistics)
    network = rewrite(module, learns=True)
    assert isinstance(network, nn.Module)
    x = image_batch(True)
    gradients = []
    for net in (module, network):
        images = x.clone().requires_grad_(True)
        gradients.append(torch.autograd.grad(net(images).logsumexp(1).sum(), images)[0])
    assert_close(gradients[1], gradients[0], 2e-5)


@pytest.mark.parametrize(
    ("case", "before", "after"),
    [
        ("small net", 2, 0),
        ("torchvision_block", 3, 0),
        ("resnet", 7, 0),
        ("wide resnet", 7, 4),
        ("norm_used_twice", 1, 0),
        ("convolution_of_two_norms", 2, 2),
        ("convolution_called_twice", 3, 2),
        ("norm_called_twice", 3, 2),
        ("convolution_used_beside_its_norm", 1, 1),
        ("sum_with_itself", 1, 1),
        ("resnet, GroupNorm", 0, 0),
    ],
)
def test_batch_norms_are_folded_into_convolutions_that_nothing_else_uses(case: str, before: int, after: int) -> None:
    module, x = copy_sharing_parameters(NETS[case]()), image_batch()
    network = rewrite(module, learns=False)
    assert isinstance(network, nn.Module)
    assert norm_calls(module, x) == before
    assert norm_calls(network, x) == after


def test_batch_norms_with_batch_statistics_are_not_folded() -> None:
    module, x = copy_sharing_parameters(textbook.small_net()), image_batch()
    NormStatistics(module, "batch", StreamAverage())
    network = rewrite(module, learns=False)
    assert isinstance(network, nn.Module)
    assert_close(network(x), module(x), 1e-6)
    assert not any(name.startswith("folded") for name, _ in network.named_modules())


def test_folding_leaves_the_network_as_it_is() -> None:
    net = textbook.small_net()
    module = copy_sharing_parameters(net)
    before = copy.deepcopy(module.state_dict())
    network = rewrite(module, learns=False)
    assert isinstance(network, nn.Module)
    network(image_batch())
    textbook.assert_bits(module.state_dict(), before)
    assert {id(p) for p in module.parameters()} >= {id(module.get_parameter("fc.weight"))}


def test_a_rewritten_network_learns_with_the_network() -> None:
    module, x = learning(textbook.small_net()), image_batch()
    network = rewrite(module, learns=True)
    assert isinstance(network, nn.Module)
    first = network(x).detach()
    with torch.no_grad():
        module.get_parameter("bn1.weight").mul_(1.5)
    assert (network(x) - first).abs().max() > 1e-2
    assert_close(network(x), module(x), 1e-5)


def test_convolutions_that_learn_get_their_gradients() -> None:
    module, x = learning(textbook.small_net()).requires_grad_(True), image_batch()
    assert_learns_alike(rewrite(module, learns=True), module, x)


@pytest.mark.parametrize("dims", [1, 3])
def test_other_dimensions_are_rewritten_too(dims: int) -> None:
    torch.manual_seed(0)
    convolution, norm = ((nn.Conv1d, nn.BatchNorm1d), (nn.Conv3d, nn.BatchNorm3d))[dims == 3]
    layers = [convolution(2, 4, 3, bias=False), norm(4), nn.ReLU(), convolution(4, 4, 1), norm(4), nn.ReLU(True)]
    x = torch.randn(6, 2, *[5] * dims)
    net = textbook.settle(nn.Sequential(*layers, nn.Flatten(), nn.Linear(4 * 3**dims, 5)), [x])
    module = learning(net)
    assert_learns_alike(rewrite(module, learns=True), module, x)
    module = copy_sharing_parameters(net)
    network = rewrite(module, learns=False)
    assert isinstance(network, nn.Module)
    assert (norm_calls(module, x), norm_calls(network, x)) == (2, 0)
    assert_close(network(x), module(x), 1e-5)


@pytest.mark.parametrize(
    "layer",
    [
        nn.Conv2d(3, 4, 3, padding="same"),
        nn.Conv2d(3, 4, 3, padding=1, padding_mode="reflect"),
        nn.Conv2d(3, 4, 3, padding=1, padding_mode="circular", bias=False),
    ],
    ids=["same", "reflect", "circular"],
)
@pytest.mark.parametrize("affine", [True, False])
def test_padding_of_other_kinds_and_norms_without_parameters(layer: nn.Conv2d, affine: bool) -> None:
    torch.manual_seed(0)
    layers = [copy.deepcopy(layer), nn.BatchNorm2d(4, affine=affine), nn.ReLU(), nn.Conv2d(4, 4, 3), nn.BatchNorm2d(4)]
    net = textbook.settle(
        nn.Sequential(*layers, nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 5)), [image_batch()]
    )
    module, x = learning(net), image_batch()
    assert_learns_alike(rewrite(module, learns=True), module, x)
    module = copy_sharing_parameters(net)
    network = rewrite(module, learns=False)
    assert isinstance(network, nn.Module)
    assert norm_calls(network, x) == 0
    assert_close(network(x), module(x), 1e-5)


# Hooks, and what cannot be followed.


@pytest.mark.parametrize("learns", [True, False])
@pytest.mark.parametrize("layer", ["conv1", "bn1", "conv2", "bn2", "fc"])
def test_hooks_of_layers_run_at_every_forward(layer: str, learns: bool) -> None:
    seen: list[str] = []
    net = textbook.small_net()
    module = learning(net) if learns else copy_sharing_parameters(net)
    module.get_submodule(layer).register_forward_hook(lambda *_: seen.append("after"))
    module.get_submodule(layer).register_forward_pre_hook(lambda *_: seen.append("before"))
    network, x = rewrite(module, learns=learns), image_batch()
    assert isinstance(network, nn.Module)
    assert seen == []
    for _ in range(2):
        seen.clear()
        logits = network(x)
        assert seen == ["before", "after"]
    assert_close(logits, module(x), 1e-5)


def test_a_hook_that_changes_a_layers_output_still_does() -> None:
    module, x = copy_sharing_parameters(NETS["torchvision_block"]()), image_batch()
    module.get_submodule("conv2").register_forward_hook(lambda _, __, out: out * 3)
    network = rewrite(module, learns=False)
    assert isinstance(network, nn.Module)
    assert_close(network(x), module(x), 1e-5)
    assert norm_calls(network, x) == 1


def test_hooks_of_blocks_run_too() -> None:
    seen: list[Tensor] = []
    module, x = learning(NETS["wide resnet"]()), image_batch()
    module.get_submodule("block2").register_forward_hook(lambda _, __, out: seen.append(out))
    network = rewrite(module, learns=True)
    assert isinstance(network, nn.Module)
    for _ in range(2):
        assert_close(network(x), module(x), 1e-5)
    assert len(seen) == 4


@pytest.mark.parametrize("learns", [True, False])
def test_hooks_of_the_network_itself_run_at_every_forward(learns: bool) -> None:
    seen: list[str] = []
    net, x = textbook.small_net(), image_batch()
    module = learning(net) if learns else copy_sharing_parameters(net)

    def double_input(_: nn.Module, args: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        seen.append("before")
        return (args[0] * 2,)

    def shift_output(_: nn.Module, __: tuple[Tensor, ...], out: Tensor) -> Tensor:
        seen.append("after")
        return out + 1

    module.register_forward_pre_hook(double_input)
    module.register_forward_hook(shift_output)
    network = rewrite(module, learns=learns)
    network = network if isinstance(network, nn.Module) else module
    for _ in range(2):
        seen.clear()
        logits = network(x)
        assert seen == ["before", "after"]
    assert_close(logits, module(x), 1e-5)


def test_backward_hooks_of_the_network_run_too() -> None:
    seen: list[int] = []
    module, x = learning(textbook.small_net()), image_batch().requires_grad_(True)
    module.register_full_backward_hook(lambda *_: seen.append(1))
    network = rewrite(module, learns=True)
    network = network if isinstance(network, nn.Module) else module
    gradients = [torch.autograd.grad(net(x).square().sum(), x)[0] for net in (network, module)]
    assert_close(gradients[0], gradients[1], 2e-5)
    assert len(seen) == 2


@pytest.mark.parametrize("learns", [True, False])
def test_a_network_that_branches_on_values_is_not_rewritten(learns: bool) -> None:
    assert isinstance(rewrite(copy_sharing_parameters(built(data_dependent)()), learns=learns), str)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_a_network_in_half_precision_is_not_rewritten(dtype: torch.dtype) -> None:
    assert isinstance(rewrite(copy_sharing_parameters(textbook.small_net().to(dtype)), learns=False), str)
    assert isinstance(rewrite(copy_sharing_parameters(textbook.small_net().to(torch.float64)), learns=False), nn.Module)


def test_a_network_without_an_operation_to_replace_is_not_rewritten() -> None:
    assert isinstance(rewrite(nn.Sequential(nn.Linear(4, 4), nn.LayerNorm(4), nn.ReLU()).eval(), learns=True), str)


# Other threads.


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_tracing_does_not_affect_networks_in_other_threads() -> None:
    other, x = textbook.small_net(), image_batch()
    expected = other(x)
    answers: list[Tensor] = []

    def meanwhile(net: Any, x: Tensor) -> Any:
        thread = threading.Thread(target=lambda: answers.append(other(image_batch())))
        thread.start()
        thread.join()
        return torch.relu(net.bn1(net.conv1(x)))

    network = rewrite(copy_sharing_parameters(Net(meanwhile)), learns=False)
    assert isinstance(network, nn.Module)
    assert len(answers) == 1
    assert torch.equal(answers[0], expected)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_adapters_in_several_threads_do_not_interfere(monkeypatch: pytest.MonkeyPatch) -> None:
    """torch.fx puts functions of its own into nn.Module while it follows a network, and the old ones back."""
    originals = {name: getattr(nn.Module, name) for name in ("__call__", "__getattr__")}
    for name, function in originals.items():
        monkeypatch.setattr(nn.Module, name, function)  # back in any case, for the tests to come
    net, x = NETS["wide resnet"](), image_batch()
    expected = cretta.adapt(net, "tent", fuse=False)(x)
    result: list[Tensor] = []

    def work() -> None:
        result.extend(cretta.adapt(net, "tent")(x) for _ in range(4))

    threads = [threading.Thread(target=work) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all(getattr(nn.Module, name) is function for name, function in originals.items())
    assert len(result) == 8
    for logits in result:
        assert_close(logits, expected, 1e-5)
