from __future__ import annotations

import threading
from collections import OrderedDict, namedtuple
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import cretta
import textbook
from cretta.errors import BatchError, ModelError
from cretta.network import Network, copy_sharing_parameters, logits_of
from cretta.normalization import NormStatistics, StreamAverage


def classifier(net: nn.Module, statistics: str = "running") -> Network:
    module = copy_sharing_parameters(net)
    return Network(module, NormStatistics(module, statistics, StreamAverage()))


# Copies that share.


def test_a_copy_shares_parameters_and_owns_what_it_is_told_to() -> None:
    net = textbook.small_net().train()
    copied = copy_sharing_parameters(net, own=["bn1.weight", "fc.bias"])
    theirs = dict(net.named_parameters())
    for name, parameter in copied.named_parameters():
        assert torch.equal(parameter, theirs[name])
        assert not parameter.requires_grad
        assert (parameter.data_ptr() == theirs[name].data_ptr()) == (name not in ("bn1.weight", "fc.bias")), name
    for name, buffer in copied.named_buffers():
        assert buffer.data_ptr() != net.get_buffer(name).data_ptr()
        assert torch.equal(buffer, net.get_buffer(name))
    assert net.training
    assert all(p.requires_grad for p in net.parameters())
    assert not any(module.training for module in copied.modules())


def test_a_copy_answers_as_the_network_does() -> None:
    net, x = textbook.small_net(), textbook.batches((4,))[0]
    assert torch.equal(copy_sharing_parameters(net)(x), net.eval()(x))


def test_tied_parameters_stay_tied() -> None:
    first, second = nn.Linear(4, 4), nn.Linear(4, 4)
    second.weight = first.weight
    net = nn.Sequential(first, second)
    for own in ([], ["0.weight"], ["1.weight"], ["0.weight", "1.weight"]):
        copied = copy_sharing_parameters(net, own=own)
        assert copied.get_parameter("0.weight") is copied.get_parameter("1.weight")
        assert (copied.get_parameter("0.weight").data_ptr() == first.weight.data_ptr()) == (not own)


def test_tensors_with_a_graph_are_named() -> None:
    net = nn.Linear(3, 3)
    net.extra = net.weight * 2
    with pytest.raises(ModelError, match=r"this Linear cannot be copied.*graph"):
        copy_sharing_parameters(net)


def test_what_cannot_be_copied_is_named() -> None:
    net = nn.Linear(3, 3)
    net.lock = threading.Lock()  # type: ignore[assignment]
    with pytest.raises(ModelError, match=r"this Linear cannot be copied \(.*lock.*\)"):
        copy_sharing_parameters(net)


def test_a_lazy_module_is_named() -> None:
    with pytest.raises(ModelError, match=r"'weight' has no shape yet.*run one batch"):
        copy_sharing_parameters(nn.LazyLinear(3))


def test_a_network_of_inference_tensors_is_copied_whole() -> None:
    with torch.inference_mode():
        net = textbook.small_net()
    copied = copy_sharing_parameters(net)
    assert not any(t.is_inference() for t in [*copied.parameters(), *copied.buffers()])
    copied.requires_grad_(True)
    copied(textbook.batches((2,))[0]).sum().backward()


def test_the_copys_buffers_are_its_own() -> None:
    class Counter(nn.Module):
        calls: Tensor

        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("calls", torch.zeros(()))

        def forward(self, x: Tensor) -> Tensor:
            self.calls.add_(1)
            return x

    net = Counter()
    copied = copy_sharing_parameters(net)
    copied(torch.zeros(2, 2))
    assert net.calls == 0
    assert copied.get_buffer("calls") == 1


# Logits in what a network returns.

Pair = namedtuple("Pair", ["logits", "aux"])
Triple = namedtuple("Triple", ["loss", "logits", "aux"])


@dataclass
class Output:
    logits: Any
    loss: Any = None


@pytest.mark.parametrize(
    "wrap",
    [
        lambda z: z,
        lambda z: Output(z),
        lambda z: {"logits": z},
        lambda z: OrderedDict(loss=None, logits=z),
        lambda z: SimpleNamespace(logits=z),
        lambda z: Pair(z, None),
        lambda z: Triple(None, z, None),
        lambda z: (z, None),
        lambda z: (z,),
    ],
    ids=["tensor", "dataclass", "dict", "ordered dict", "namespace", "pair", "named tuple", "tuple", "tuple of one"],
)
def test_logits_are_found(wrap: Any) -> None:
    z = torch.randn(3, 4)
    assert logits_of(wrap(z), 3) is z


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_logits_become_single(dtype: torch.dtype) -> None:
    z = torch.randn(3, 4).to(dtype)
    assert torch.equal(logits_of(z, 3), z.float())


def test_double_logits_stay_double() -> None:
    assert logits_of(torch.zeros(3, 4, dtype=torch.float64), 3).dtype == torch.float64


@pytest.mark.parametrize(
    ("output", "message"),
    [
        ((), "returned tuple"),
        ((None, torch.zeros(3, 4)), "returned tuple"),
        ([torch.zeros(3, 4)], "returned list"),
        ([1.0], "returned list"),
        (None, "returned NoneType"),
        ({"output": torch.zeros(3, 4)}, "returned dict"),
        (Output("logits"), "returned Output"),
        (torch.zeros(3), r"shape \(3,\) for a batch of 3; expected \(3, classes\)"),
        (torch.zeros(2, 4), r"shape \(2, 4\) for a batch of 3"),
        (torch.zeros(3, 4, 1), r"shape \(3, 4, 1\)"),
        (torch.zeros(()), r"shape \(\)"),
        ((torch.zeros(()), torch.zeros(3, 4)), r"begins with a tensor of shape \(\).* returns its logits first"),
    ],
)
def test_what_holds_no_logits_is_refused(output: object, message: str) -> None:
    with pytest.raises(ModelError, match=message):
        logits_of(output, 3)


def test_whole_numbers_are_no_logits() -> None:
    """One-hot predictions, or counts: they have the shape, and cannot be learned from."""
    with pytest.raises(ModelError, match="int64"):
        logits_of(torch.zeros(3, 4, dtype=torch.int64), 3)


# Calling.


class Logarithm(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return torch.log(x + 1e-9)


def test_a_wrong_rank_is_explained() -> None:
    model = classifier(textbook.small_net())
    message = r"\(3, 8, 8\): its convolutions expect 4 dimensions, the batch first; use x.unsqueeze\(0\)"
    with pytest.raises(BatchError, match=message):
        model(textbook.batches((1,))[0][0])


def test_gray_images_are_explained() -> None:
    model = classifier(textbook.small_net())
    with pytest.raises(BatchError, match=r"expects 3 channels.*for gray images, x.expand\(-1, 3, -1, -1\)"):
        model(torch.zeros(4, 1, 8, 8))


@pytest.mark.filterwarnings("ignore:torch.ao.quantization is deprecated", "ignore:.*quantize.*:UserWarning")
def test_quantized_layers_are_explained() -> None:
    layer = torch.ao.nn.quantized.Conv2d(3, 4, 3)
    model = classifier(nn.Sequential(layer, nn.BatchNorm2d(4), nn.Flatten(), nn.Linear(4 * 36, 5)))
    with pytest.raises(ModelError, match=r"quantized layers.*Adapt the network from before its quantization"):
        model(textbook.batches((4,))[0])


def test_other_errors_of_the_network_come_through() -> None:
    """They are the user's own, and say more than a guess would."""

    class Broken(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            raise RuntimeError("the user's own")

    with pytest.raises(RuntimeError, match="the user's own"):
        classifier(Broken())(torch.zeros(2, 3))


def test_batches_that_the_first_convolution_cannot_take_are_explained() -> None:
    model = classifier(textbook.small_net())
    with pytest.raises(BatchError, match=r"\(2, 1, 8, 8\).*expects 3 channels"):
        model(torch.zeros(2, 1, 8, 8))
    with pytest.raises(BatchError, match=r"\(2, 8, 8, 3\).*x\.permute\(0, 3, 1, 2\)"):
        model(torch.zeros(2, 8, 8, 3))
    with pytest.raises(BatchError, match=r"torch\.uint8.*torch\.float32.*x\.float\(\) / 255"):
        model(torch.zeros(2, 3, 8, 8, dtype=torch.uint8))
    with pytest.raises(BatchError, match=r"torch\.float64.*x\.to\(torch\.float32\)"):
        model(torch.zeros(2, 3, 8, 8, dtype=torch.float64))


def test_probabilities_and_single_numbers_are_no_logits() -> None:
    net = nn.Sequential(textbook.small_net(), nn.Softmax(1))
    with pytest.raises(ModelError, match=r"probabilities.*before the softmax"):
        classifier(net)(textbook.batches((4,))[0])
    with pytest.raises(ModelError, match="at least two classes"):
        classifier(nn.Linear(3, 1))(torch.zeros(4, 3))


def test_outputs_of_a_sigmoid_get_a_warning_once() -> None:
    """They may be logits, by chance; a single row is too little to judge."""
    x, y = textbook.batches((4, 4))
    net = nn.Sequential(textbook.small_net(), nn.Sigmoid())
    model = cretta.adapt(net, "tent")
    with pytest.warns(UserWarning, match="between 0 and 1, as after a sigmoid; expected logits.* remove it"):
        model(x)
    model(y)
    logits = torch.tensor([[0.2, 0.7], [0.4, 0.9]])
    for quiet in (logits[:1], logits - 0.3, logits + 0.3):
        classifier(nn.Identity())(quiet)


@pytest.mark.parametrize(
    "end", [nn.LogSoftmax(1), nn.Sequential(nn.Softmax(1), Logarithm())], ids=["at once", "by log"]
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("classes", [2, 5, 1000])
@pytest.mark.parametrize("confidence", [0.0, 1.0, 30.0])
def test_log_probabilities_are_no_logits(end: nn.Module, dtype: torch.dtype, classes: int, confidence: float) -> None:
    """Their energy is 0 within rounding, whatever the image is."""
    net = nn.Sequential(nn.Linear(3, classes), end).to(dtype)
    net.get_parameter("0.weight").data.mul_(confidence)
    model, x = classifier(net), torch.randn(7, 3, dtype=dtype, generator=torch.Generator().manual_seed(0))
    for _ in range(2):
        with pytest.raises(
            ModelError, match=r"log-probabilities.*expected logits, from before the log_softmax: remove"
        ):
            model(x)


@pytest.mark.parametrize(("end", "message"), [(nn.Softmax(1), "probabilities"), (nn.LogSoftmax(1), "log-prob")])
@pytest.mark.parametrize("method", ["source", "tent"])
def test_rounded_probabilities_are_no_logits_either(end: nn.Module, message: str, method: str) -> None:
    x = torch.rand(8, 3, textbook.SIDE, textbook.SIDE, generator=torch.Generator().manual_seed(0))
    model = cretta.adapt(nn.Sequential(textbook.small_net(), end), method, precision="bfloat16")
    with pytest.raises(ModelError, match=message):
        model(x)


def test_logits_that_are_no_log_probabilities() -> None:
    """One row whose logsumexp is 0 among others, and all rows with another one in common."""
    z = torch.randn(4, 5, generator=torch.Generator().manual_seed(0))
    for logits in (torch.cat([z[:1].log_softmax(1), z[1:]]), z.log_softmax(1) + 0.01, torch.zeros(4, 5)):
        assert torch.equal(classifier(nn.Identity())(logits), logits)


def test_a_network_that_flattens_by_view_takes_channels_last_batches() -> None:
    class Viewing(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv, self.norm, self.fc = nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Linear(4 * 36, 5)

        def forward(self, x: Tensor) -> Tensor:
            logits: Tensor = self.fc(self.norm(self.conv(x)).view(len(x), -1))
            return logits

    torch.manual_seed(0)
    model, (x,) = classifier(Viewing()), textbook.batches((4,))
    expected = model(x)
    for _ in range(2):
        found = model(x.contiguous(memory_format=torch.channels_last))
        torch.testing.assert_close(found, expected)


def test_the_role_does_not_outlast_the_call() -> None:
    model = classifier(textbook.small_net(), "moving")
    model.source(textbook.batches((4,))[0])
    assert model.statistics.role == "target"
    with pytest.raises(BatchError):
        model.source(torch.zeros(3, 8, 8))
    assert model.statistics.role == "target"
