"""Rewritten networks against the networks they were made from, and what is left as it is."""

from __future__ import annotations

import copy
import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import cretta
import textbook
from cretta.accelerate import accelerator
from cretta.accelerate.graph import rewrite
from cretta.models import ResNet, WideResNet
from cretta.network import Network, copy_sharing_parameters
from cretta.normalization import NormStatistics, StreamAverage, norm_parameter_names

Way = Callable[[Any, Tensor], Any]
WIDTH = 48
"""Channels: so many images of three make as many, and kernels of our own take them by sixteen."""


class Net(nn.Module):
    """Three convolutions with BatchNorm, to be called in a way of its own, and a linear head."""

    def __init__(self, way: Way) -> None:
        super().__init__()
        self.way = way
        self.conv1, self.bn1 = nn.Conv2d(3, WIDTH, 3, padding=1, bias=False), nn.BatchNorm2d(WIDTH)
        self.conv2, self.bn2 = nn.Conv2d(WIDTH, WIDTH, 3, padding=1), nn.BatchNorm2d(WIDTH)
        self.conv3, self.bn3 = nn.Conv2d(WIDTH, WIDTH, 1, bias=False), nn.BatchNorm2d(WIDTH)
        self.relu, self.inplace = nn.ReLU(), nn.ReLU(inplace=True)
        self.fc = nn.Linear(WIDTH, 5)

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.fc(self.way(self, x).mean((2, 3)))
        return logits


def torchvision_block(net: Any, x: Tensor) -> Any:
    identity = net.inplace(net.bn1(net.conv1(x)))
    out = net.bn3(net.conv3(net.inplace(net.bn2(net.conv2(identity)))))
    out += identity
    return net.inplace(out)


def norm_used_twice(net: Any, x: Tensor) -> Any:
    normal = net.bn1(net.conv1(x))
    return torch.relu(normal) + net.conv2(normal)


def norm_used_twice_and_added(net: Any, x: Tensor) -> Any:
    normal = net.bn1(net.conv1(x))
    return torch.relu(net.bn2(net.conv2(normal)) + normal) * normal


def norm_used_after_its_sum(net: Any, x: Tensor) -> Any:
    normal = net.bn1(net.conv1(x))
    total = normal + net.conv2(F.relu(x.repeat(1, WIDTH // 3, 1, 1)))
    return torch.relu(total) - normal


def convolution_of_two_norms(net: Any, x: Tensor) -> Any:
    out = net.conv1(x)
    return torch.relu(net.bn1(out)) + torch.relu(net.bn2(out))


def convolution_called_twice(net: Any, x: Tensor) -> Any:
    out = F.relu(net.bn1(net.conv1(x)))
    return F.relu(net.bn3(net.conv2(F.relu(net.bn2(net.conv2(out))))))


def norm_called_twice(net: Any, x: Tensor) -> Any:
    out = F.relu(net.bn1(net.conv1(x)))
    return F.relu(net.bn2(net.conv3(F.relu(net.bn2(net.conv2(out))))))


def convolution_used_beside_its_norm(net: Any, x: Tensor) -> Any:
    out = net.conv1(x)
    return torch.relu(net.bn1(out)) + out


def sum_that_broadcasts(net: Any, x: Tensor) -> Any:
    out = net.bn1(net.conv1(x))
    return torch.relu(net.conv2(out.mean((2, 3), keepdim=True))[:, :, :1, :1] + torch.relu(out)) + net.bn1.bias.sum()


def small_sum_that_broadcasts(net: Any, x: Tensor) -> Any:
    out = torch.relu(net.bn1(net.conv1(x)))
    return torch.relu(net.conv3(out.mean((2, 3), keepdim=True)) + net.bn2(net.conv2(out)))


def sum_with_itself(net: Any, x: Tensor) -> Any:
    out = net.conv1(x)
    return torch.relu(net.bn1(out + out))


def sum_in_place_of_what_is_used_again(net: Any, x: Tensor) -> Any:
    first = torch.sigmoid(net.bn1(net.conv1(x))).clone()
    second = first
    second += net.bn2(net.conv2(torch.relu(x.repeat(1, WIDTH // 3, 1, 1))))
    return torch.relu(second) - 2 * first


def sum_of_sizes(net: Any, x: Tensor) -> Any:
    out = torch.relu(net.bn1(net.conv1(x)))
    sides = out.shape[2] + out.shape[3] + out.shape[1]
    shape = out.shape[:1] + out.shape[1:2] + out.shape[2:]
    return out.reshape(shape) * (sides / 20)


def with_more_arguments(net: Any, x: Tensor, y: Any = None, features: bool = False) -> Any:
    out = torch.relu(net.bn1(net.conv1(x)))
    if y is not None:
        out = out.gather(1, y[:, None])
    return [out] if features else out


def sum_weighted(net: Any, x: Tensor) -> Any:
    out = torch.relu(net.bn1(net.conv1(x)))
    return torch.relu(torch.add(net.bn2(net.conv2(out)), out, alpha=3))


def sum_with_a_number(net: Any, x: Tensor) -> Any:
    return torch.relu(net.bn1(net.conv1(x)) + 0.1)


def sum_of_methods(net: Any, x: Tensor) -> Any:
    out = net.bn1(net.conv1(x)).relu_()
    return net.bn2(net.conv2(out)).add_(net.conv3(out)).relu().add(out)


def relu_in_place(net: Any, x: Tensor) -> Any:
    out = net.bn1(net.conv1(x)).relu_()
    return net.bn2(net.conv2(out)).relu_()


def relu_in_place_of_what_is_used_again(net: Any, x: Tensor) -> Any:
    out = net.bn1(net.conv1(x))
    return out.relu_() + net.conv2(out)


def relu_of_a_convolution(net: Any, x: Tensor) -> Any:
    return F.relu(net.conv2(torch.relu(net.conv1(x)))) + net.bn1(net.conv1(x))


def under_no_grad(net: Any, x: Tensor) -> Any:
    with torch.no_grad():
        out = torch.relu(net.bn1(net.conv1(x)))
    return F.relu(net.bn2(net.conv2(out)))


def data_dependent(net: Any, x: Tensor) -> Any:
    out = torch.relu(net.bn1(net.conv1(x)))
    return out if out.mean() > 100 else torch.relu(net.bn2(net.conv2(out)))


def asks_for_a_tensor(net: Any, x: Tensor) -> Any:
    out = torch.relu(net.bn1(net.conv1(x)))
    return torch.relu(net.bn2(net.conv2(out))) if isinstance(x, Tensor) else out * 0


def at_random(net: Any, x: Tensor) -> Any:
    out = torch.relu(net.bn1(net.conv1(x)))
    return torch.relu(net.bn2(net.conv2(out * (1 + torch.rand_like(out)))))


def built(way: Way) -> Callable[[], nn.Module]:
    def build() -> nn.Module:
        torch.manual_seed(0)
        return textbook.settle(Net(way), textbook.source_images(24).split(8))

    return build


def shipped(make: Callable[[], nn.Module]) -> Callable[[], nn.Module]:
    def build() -> nn.Module:
        torch.manual_seed(0)
        return textbook.settle(make(), textbook.source_images(24).split(8))

    return build


WAYS: list[Way] = [
    torchvision_block,
    norm_used_twice,
    norm_used_twice_and_added,
    norm_used_after_its_sum,
    convolution_of_two_norms,
    convolution_called_twice,
    norm_called_twice,
    convolution_used_beside_its_norm,
    sum_that_broadcasts,
    small_sum_that_broadcasts,
    sum_with_itself,
    sum_of_sizes,
    with_more_arguments,
    sum_weighted,
    sum_with_a_number,
    sum_of_methods,
    relu_in_place,
    relu_in_place_of_what_is_used_again,
    relu_of_a_convolution,
]
NETS: dict[str, Callable[[], nn.Module]] = {
    "wide resnet": shipped(lambda: WideResNet(10, 1, 5)),
    "wide resnet, normalised": shipped(lambda: WideResNet(10, 1, 5, mean=[0.4] * 3, std=[0.3] * 3)),
    "wide resnet, dropout": shipped(lambda: WideResNet(10, 1, 5, dropout=0.3)),
    "resnet": shipped(lambda: ResNet(8, 5, 8)),
    "resnet, GroupNorm": shipped(lambda: ResNet(8, 5, 8, norm="group")),
    "small net": textbook.small_net,
    **{way.__name__: built(way) for way in WAYS},
}
UNTRUSTED = {
    way.__name__: built(way)
    for way in (asks_for_a_tensor, at_random, under_no_grad, sum_in_place_of_what_is_used_again)
}


def learning(net: nn.Module, statistics: str = "batch") -> nn.Module:
    """A copy as an adapter has it: γ and β learn, everything else is frozen."""
    names = norm_parameter_names(net)
    module = copy_sharing_parameters(net, own=names)
    NormStatistics(module, statistics, 0.1, StreamAverage())
    for name in names:
        module.get_parameter(name).requires_grad_(True)
    return module


def image_batch(channels_last: bool = False) -> Tensor:
    (x,) = textbook.batches((6,))
    return x.contiguous(memory_format=torch.channels_last) if channels_last else x


def logits_and_gradients(network: nn.Module, module: nn.Module, x: Tensor) -> list[Tensor]:
    parameters = [p for p in module.parameters() if p.requires_grad]
    logits = network(x)
    weights = torch.linspace(0.5, 1.5, logits.numel()).view_as(logits)
    slopes = torch.autograd.grad((logits * weights).square().sum(), parameters, allow_unused=True)
    return [logits.detach(), *(p * 0 if s is None else s for p, s in zip(parameters, slopes, strict=True))]


def assert_close(found: Tensor, expected: Tensor, tolerance: float) -> None:
    assert found.shape == expected.shape
    assert (found - expected).abs().max() <= tolerance * (1e-3 + expected.abs().max())


def assert_learns_alike(network: nn.Module | str, module: nn.Module, x: Tensor) -> None:
    assert isinstance(network, nn.Module)
    expected = logits_and_gradients(module, module, x)
    for one, other in zip(logits_and_gradients(network, module, x), expected, strict=True):
        assert_close(one, other, 2e-5)


def norm_calls(network: nn.Module, x: Tensor) -> int:
    calls = 0
    original = F.batch_norm

    def counted(*given: Any, **named: Any) -> Tensor:
        nonlocal calls
        calls += 1
        return original(*given, **named)

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
    NormStatistics(module, statistics, 0.1, StreamAverage())
    network = rewrite(module, learns=False)
    assert isinstance(network, nn.Module)
    for channels_last in (False, True):
        x = image_batch(channels_last)
        before = x.clone()
        with torch.no_grad():
            assert_close(network(x), module(x), 1e-5)
        assert torch.equal(x, before)


@pytest.mark.parametrize("statistics", ["batch", "running"])
def test_what_is_written_into_after_its_norm_and_before_a_convolution(statistics: str) -> None:
    def way(net: Any, x: Tensor) -> Any:
        out = net.conv1(x)
        normal = torch.relu(net.bn1(out))
        out += 1
        return net.conv2(normal) + out

    module = copy_sharing_parameters(built(way)())
    NormStatistics(module, statistics, 0.1, StreamAverage())
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
    slopes = []
    for each in (module, network):
        images = x.clone().requires_grad_(True)
        slopes.append(torch.autograd.grad(each(images).logsumexp(1).sum(), images)[0])
    assert_close(slopes[1], slopes[0], 2e-5)


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
def test_norms_are_folded_into_the_convolutions_that_are_theirs_alone(case: str, before: int, after: int) -> None:
    module, x = copy_sharing_parameters(NETS[case]()), image_batch()
    network = rewrite(module, learns=False)
    assert isinstance(network, nn.Module)
    assert norm_calls(module, x) == before
    assert norm_calls(network, x) == after


def test_norms_of_the_batchs_statistics_are_not_folded() -> None:
    module, x = copy_sharing_parameters(textbook.small_net()), image_batch()
    NormStatistics(module, "batch", 0.1, StreamAverage())
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

    def double_input(_: nn.Module, given: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        seen.append("before")
        return (given[0] * 2,)

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


def test_hooks_on_the_way_back_through_the_network_run_too() -> None:
    seen: list[int] = []
    module, x = learning(textbook.small_net()), image_batch().requires_grad_(True)
    module.register_full_backward_hook(lambda *_: seen.append(1))
    network = rewrite(module, learns=True)
    network = network if isinstance(network, nn.Module) else module
    slopes = [torch.autograd.grad(each(x).square().sum(), x)[0] for each in (network, module)]
    assert_close(slopes[0], slopes[1], 2e-5)
    assert len(seen) == 2


@pytest.mark.parametrize("learns", [True, False])
def test_a_network_that_looks_at_its_numbers_is_left_alone(learns: bool) -> None:
    assert isinstance(rewrite(copy_sharing_parameters(built(data_dependent)()), learns=learns), str)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_a_network_in_half_precision_is_left_alone(dtype: torch.dtype) -> None:
    assert isinstance(rewrite(copy_sharing_parameters(textbook.small_net().to(dtype)), learns=False), str)
    assert isinstance(rewrite(copy_sharing_parameters(textbook.small_net().to(torch.float64)), learns=False), nn.Module)


def test_a_network_with_nothing_to_gain_is_left_alone() -> None:
    assert isinstance(rewrite(nn.Sequential(nn.Linear(4, 4), nn.LayerNorm(4), nn.ReLU()).eval(), learns=True), str)


# Other threads.


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_following_one_network_leaves_others_in_other_threads_alone() -> None:
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
def test_adapters_in_threads_of_their_own_do_not_meet(monkeypatch: pytest.MonkeyPatch) -> None:
    """torch.fx puts functions of its own into nn.Module while it follows a network, and the old ones back."""
    originals = {name: getattr(nn.Module, name) for name in ("__call__", "__getattr__")}
    for name, function in originals.items():
        monkeypatch.setattr(nn.Module, name, function)  # back in any case, for the tests to come
    net, x = NETS["wide resnet"](), image_batch()
    expected = cretta.adapt(net, "tent", fuse=False)(x)
    found: list[Tensor] = []

    def work() -> None:
        found.extend(cretta.adapt(net, "tent")(x) for _ in range(4))

    threads = [threading.Thread(target=work) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all(getattr(nn.Module, name) is function for name, function in originals.items())
    assert len(found) == 8
    for logits in found:
        assert_close(logits, expected, 1e-5)


# Trusted or not.


def classifier(net: nn.Module, *, learns: bool = True, fuse: bool = True, statistics: str = "batch") -> Network:
    module = learning(net, statistics) if learns else copy_sharing_parameters(net)
    statistics = statistics if learns else "running"
    return Network(module, NormStatistics(module, statistics, 0.1, StreamAverage()), learns=learns, fuse=fuse)


@pytest.mark.parametrize("learns", [True, False])
@pytest.mark.parametrize("case", NETS)
def test_a_classifier_trusts_what_is_right(case: str, learns: bool) -> None:
    model, x = classifier(NETS[case](), learns=learns), image_batch()
    expected = classifier(NETS[case](), learns=learns, fuse=False)(x)
    for _ in range(2):
        assert_close(model(x), expected, 1e-5)
    assert model.backend.name != "plain"


@pytest.mark.parametrize("learns", [True, False])
@pytest.mark.parametrize("case", UNTRUSTED)
def test_a_classifier_settles_for_the_network_itself(case: str, learns: bool) -> None:
    model, plain = (classifier(UNTRUSTED[case](), learns=learns, fuse=fuse) for fuse in (True, False))
    x = image_batch()
    for _ in range(2):
        logits = []
        for each in (model, plain):
            each(x)
            torch.manual_seed(3)
            logits.append(each(x))
        assert model.backend.name == "plain" or case == "under_no_grad"
        assert_close(logits[0], logits[1], 1e-5)


@pytest.mark.parametrize("case", UNTRUSTED)
@pytest.mark.parametrize("method", ["tent", "source"])
def test_an_adapter_of_such_a_network_answers_as_without_rewriting(case: str, method: str) -> None:
    logits, stream = {}, textbook.batches((6, 6, 6))
    for fuse in (True, False):
        model = cretta.adapt(UNTRUSTED[case](), method, fuse=fuse)
        with torch.enable_grad():
            model.model.probe(stream[0])
        torch.manual_seed(4)
        logits[fuse] = [model(x) for x in stream]
    for one, other in zip(logits[True], logits[False], strict=True):
        assert_close(one, other, 1e-4)


class Off(nn.Module):
    """Logits that are off by ``by``, or gradients that are by ``factor``."""

    def __init__(self, module: nn.Module, by: float = 0.0, factor: float = 1.0) -> None:
        super().__init__()
        self.module, self.by, self.factor = module, by, factor

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.module(x)
        bent = self.factor * logits + (1 - self.factor) * logits.detach()
        return bent + self.by * torch.arange(logits.shape[1])


class Spoilt(nn.Module):
    """Another answer than a tensor of logits."""

    def __init__(self, how: str) -> None:
        super().__init__()
        self.how = how

    def forward(self, x: Tensor) -> Any:
        if self.how == "raises":
            raise RuntimeError("spoilt")
        return {"nan": torch.full((len(x), 5), torch.nan), "shape": torch.zeros(len(x), 7), "none": None}[self.how]


WRONG: dict[str, Callable[[nn.Module], nn.Module]] = {
    "logits": lambda module: Off(module, by=1.0),
    "logits by little": lambda module: Off(module, by=0.03),
    "gradients of none": lambda module: Off(module, factor=0.0),
    "gradients of half": lambda module: Off(module, factor=0.5),
    "gradients of the other sign": lambda module: Off(module, factor=-1.0),
    "gradients by little": lambda module: Off(module, factor=1.05),
    "numbers": lambda _: Spoilt("nan"),
    "shapes": lambda _: Spoilt("shape"),
    "an exception": lambda _: Spoilt("raises"),
    "no tensor": lambda _: Spoilt("none"),
}


@pytest.mark.parametrize("confidence", [0.1, 20.0])
@pytest.mark.parametrize("case", WRONG)
def test_a_rewriting_that_is_wrong_is_refused(case: str, confidence: float, monkeypatch: pytest.MonkeyPatch) -> None:
    net, stream = textbook.small_net(), textbook.batches((6, 6, 6))
    net.fc.weight.data.mul_(confidence)
    net.fc.bias.data.mul_(confidence)
    expected = cretta.adapt(net, "tent", fuse=False, lr=1e-2)
    logits = [expected(x) for x in stream]
    asked = []

    def wrong(module: nn.Module, *, learns: bool, call: object) -> nn.Module:
        asked.append(learns)
        return WRONG[case](module)

    monkeypatch.setattr(accelerator, "rewrite", wrong)
    model = cretta.adapt(net, "tent", fuse=True, lr=1e-2)
    for x, other in zip(stream, logits, strict=True):
        assert torch.equal(model(x), other)
    assert model.backend.name == "plain"
    assert asked == [True]


def test_wrong_logits_of_the_source_model_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    net, stream = textbook.small_net(), textbook.batches((6, 6, 6))
    buffer = cretta.SourceBuffer(textbook.source_images(8), augment="none")
    expected = cretta.adapt(net, "cretta", buffer=buffer, fuse=False, lr=1e-2)
    logits = [expected(x) for x in stream]
    monkeypatch.setattr(accelerator, "rewrite", lambda module, learns, call: Off(module, 0.0 if learns else 0.5))
    model = cretta.adapt(net, "cretta", buffer=buffer, fuse=True, lr=1e-2)
    for x, other in zip(stream, logits, strict=True):
        assert_close(model(x), other, 1e-6)


def test_a_rewriting_that_is_right_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(accelerator, "rewrite", lambda module, **_: Off(module))
    model, (x,) = cretta.adapt(textbook.small_net(), "tent", fuse=True), textbook.batches((6,))
    model(x)
    assert isinstance(model.model._accelerator._accelerated, Off)


def test_trying_moves_nothing_and_is_no_part_of_the_stream() -> None:
    states = []
    for fuse in (True, False):
        model = cretta.adapt(textbook.small_net(), "tent", fuse=fuse, statistics="moving")
        model.predict(image_batch())
        textbook.assert_bits(model.state.snapshot(), model.initial)
        model(image_batch())
        states.append(model.state.snapshot())
    for name, value in states[1].items():
        assert_close(states[0][name].double(), value.double(), 1e-4)


@pytest.mark.parametrize("method", ["tent", "bn_adapt", "source"])
def test_who_only_predicts_gets_the_rewritten_network_too(method: str) -> None:
    model, x = cretta.adapt(textbook.small_net(), method), image_batch()
    logits = model.predict(x)
    assert model.backend.name != "plain"
    assert_close(logits, cretta.adapt(textbook.small_net(), method, fuse=False).predict(x), 1e-5)


def test_a_batch_of_one_and_then_more() -> None:
    """One value a channel has no statistics; that must not decide for good."""
    net = nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.ReLU(), nn.Linear(6, 5))
    torch.manual_seed(0)
    x = torch.randn(6, 4)
    model = cretta.adapt(textbook.settle(net, [x]), "tent")
    with pytest.raises(cretta.BatchError, match="too small"):
        model(x[:1])
    expected = cretta.adapt(net, "tent", fuse=False)
    assert_close(model(x), expected(x), 1e-5)
    assert model.backend.name != "plain"


def test_networks_without_rewriting_are_called_as_they_are() -> None:
    model = cretta.adapt(textbook.small_net(), "tent", fuse=False)
    model(image_batch())
    assert model.backend.name == "plain"
