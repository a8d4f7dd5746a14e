"""What runs a network, how it is verified on the first batch, and what the verification leaves unchanged."""

from __future__ import annotations

import ast
import contextlib
import logging
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from traced_networks import NETS, UNTRUSTED, assert_close, built, data_dependent, image_batch, learning

import cretta
import textbook
from cretta.accelerate import accelerator, kernels
from cretta.accelerate.graph import rewrite
from cretta.errors import BatchError
from cretta.models import WideResNet
from cretta.network import Network, copy_sharing_parameters
from cretta.normalization import NormStatistics, StreamAverage

needs_kernels = pytest.mark.skipif(kernels.missing() is not None, reason=f"no kernels here: {kernels.missing()}")


# The entry point.


def imported_modules(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def test_no_other_module_imports_the_inside_of_accelerate() -> None:
    package = Path(cretta.__file__).parent
    inside = {f"cretta.accelerate.{path.stem}" for path in (package / "accelerate").glob("*.py")}
    for path in package.rglob("*.py"):
        if path.parent != package / "accelerate":
            assert not inside & set(imported_modules(path)), path


# What is reported.


def wide_net(seed: int = 0) -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return textbook.settle(WideResNet(10, 1, 5), textbook.source_images(32).split(8))


def test_the_backend_is_reported() -> None:
    model, (x,) = cretta.adapt(wide_net(), "tent"), textbook.batches((6,))
    assert str(model.backend) == "plain: not chosen yet; the first batch decides"
    model(x)
    assert model.backend.name == ("rewritten" if kernels.missing() else "kernels")
    assert "verified on 3 samples of the first batch" in str(model.backend)


@pytest.mark.parametrize(
    ("net", "options", "backend"),
    [
        (wide_net, {"fuse": False}, "plain: fuse=False"),
        (wide_net, {"precision": "bfloat16"}, "plain: precision='bfloat16'"),
        (built(data_dependent), {}, "plain: Net cannot be rewritten: torch.fx cannot trace it (symbolically"),
        (lambda: nn.Sequential(nn.Flatten(), nn.LayerNorm(192), nn.Linear(192, 5)), {}, "no operation that could be"),
    ],
)
def test_the_reason_for_the_plain_network_is_reported(
    net: Callable[[], nn.Module], options: dict[str, Any], backend: str
) -> None:
    model = cretta.adapt(net(), "tent", **options)
    model(image_batch())
    assert backend in str(model.backend)


def test_a_compiled_network_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "compile", lambda module, mode: module)
    model = cretta.adapt(wide_net(), "tent", compile="default")
    assert str(model.backend) == "compiled: compile='default'"


def test_why_the_kernels_are_not_used_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CRETTA_KERNELS", "off")
    model = cretta.adapt(wide_net(), "tent")
    model(image_batch())
    assert str(model.backend).startswith("rewritten: verified on 3 samples")
    assert str(model.backend).endswith("without custom CPU kernels: CRETTA_KERNELS=off is set")


@needs_kernels
def test_a_network_without_a_layer_for_the_kernels_is_reported() -> None:
    model = cretta.adapt(textbook.small_net(), "tent")
    model(image_batch())
    assert str(model.backend).startswith("rewritten")
    assert str(model.backend).endswith("no layer of this network fits them")


def test_under_autocast_the_choice_stays_open() -> None:
    model, x = cretta.adapt(wide_net(), "tent"), image_batch()
    with torch.autocast("cpu", torch.bfloat16):
        model(x)
    assert "not chosen yet" in str(model.backend)
    model(x)
    assert model.backend.name != "plain"


# Kernels.

WRONG_KERNELS = {
    "convolve": "cretta_convolve",
    "gradient of the convolution": "cretta_convolve_backward",
    "BatchNorm": "cretta_batch_norm_relu",
    "statistics": "cretta_batch_norm_relu 7",
    "gradient of the shortcut": "cretta_batch_norm_relu_backward 6",
    "gradient of x": "cretta_batch_norm_relu_backward 7",
    "gradients of γ and β": "cretta_batch_norm_relu_backward 8",
}


def residual_net() -> nn.Module:
    """A network whose blocks end with BatchNorm, a sum and a ReLU."""
    return NETS["resnet of 16 channels"]()


WITH_KERNELS = {"WideResNet": wide_net, "ResNet": residual_net}


def spoil(monkeypatch: pytest.MonkeyPatch, wrong: str, factor: float) -> None:
    """Multiply one result of one kernel by a factor."""
    results = {"cretta_convolve": 7, "cretta_convolve_backward": 7, "cretta_batch_norm_relu": 6}
    kernel, _, argument = wrong.partition(" ")
    position = int(argument or results.get(kernel, 0))
    run = kernels.Library.call

    def call(self: kernels.Library, name: str, *arguments: Any, label: str | None = None) -> None:
        run(self, name, *arguments, label=label)
        if kernel == (label or name) and arguments[position] is not None:
            arguments[position].mul_(factor)

    monkeypatch.setattr(kernels.Library, "call", call)


@needs_kernels
@pytest.mark.parametrize("network", WITH_KERNELS)
@pytest.mark.filterwarnings("ignore:a batch .* far outside")
def test_kernels_are_not_judged_by_values_that_overflow(network: str, caplog: pytest.LogCaptureFixture) -> None:
    x = image_batch(True)
    model = cretta.adapt(WITH_KERNELS[network](), "tent")
    with caplog.at_level(logging.WARNING, "cretta"), contextlib.suppress(BatchError):
        model(1e30 * x)
    names = [model.backend.name]
    model.reset()
    model(x)
    assert [*names, model.backend.name] == ["plain", "kernels"]
    assert not caplog.text


@needs_kernels
@pytest.mark.parametrize("factor", [1.02, float("nan")])
@pytest.mark.parametrize(
    ("network", "wrong"),
    [
        (network, wrong)
        for network in WITH_KERNELS
        for wrong in WRONG_KERNELS
        if (network, wrong) != ("WideResNet", "gradient of the shortcut")
    ],
)
def test_a_kernel_that_is_off_by_two_percent_or_not_finite_is_rejected(
    network: str, wrong: str, factor: float, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    x = image_batch(True)
    expected = cretta.adapt(WITH_KERNELS[network](), "tent", fuse=False)(x)
    spoil(monkeypatch, WRONG_KERNELS[wrong], factor)
    model = cretta.adapt(WITH_KERNELS[network](), "tent")
    with caplog.at_level(logging.WARNING, "cretta"):
        logits = model(x)
    assert model.backend.name == "rewritten"
    assert "% from PyTorch" in model.backend.reason
    assert f"The custom CPU kernels are not used for {network}" in caplog.text
    assert_close(logits, expected, 1e-6)


@needs_kernels
def test_an_error_beside_a_large_shortcut_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The results of the convolutions are a few percent of the shortcuts that are added to them."""
    torch.manual_seed(0)
    net = cretta.models.build("wrn-16-2")
    for layer in net.modules():
        if isinstance(layer, nn.Conv2d) and layer.in_channels == layer.out_channels:
            layer.weight.data.mul_(0.01)
    run = kernels.Library.call
    spoiled = 0

    def call(self: kernels.Library, name: str, *arguments: Any, label: str | None = None) -> None:
        nonlocal spoiled
        if name == "cretta_convolve" and arguments[1] == 2 and arguments[6] is not None:  # tiles of 2 × 2, a shortcut
            arguments = (*arguments[:4], 1.02 * arguments[4], *arguments[5:])
            spoiled += 1
        run(self, name, *arguments, label=label)

    monkeypatch.setattr(kernels.Library, "call", call)
    model = cretta.adapt(net.eval(), "tent")
    model(torch.rand(8, 3, 16, 16))
    assert spoiled
    assert model.backend.name == "rewritten"


@needs_kernels
@pytest.mark.parametrize("statistics", ["batch", "running"])
@pytest.mark.parametrize("seed", [*range(8), 30])
def test_correct_kernels_are_accepted_whatever_the_batch(seed: int, statistics: str) -> None:
    """With seed 30 rounding changes the sign of a ReLU's input: a gradient of the network differs by 12 %."""
    torch.manual_seed(seed)
    model = cretta.adapt(NETS["wide resnet"](), "tent", statistics=statistics)
    model(torch.rand(6, 3, 8, 8))
    assert model.backend.name == "kernels", model.backend


class Amplifying(nn.Module):
    """A network whose logits multiply the rounding of its layers by a thousand, as very deep networks do."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = wide_net()

    def forward(self, x: Tensor) -> Tensor:
        return torch.sin(1000 * self.inner(x))


@needs_kernels
@pytest.mark.parametrize(("wrong", "backend"), [(None, "kernels"), ("cretta_batch_norm_relu", "rewritten")])
def test_kernels_are_accepted_where_rounding_is_amplified_and_rejected_for_more_than_rounding(
    wrong: str | None, backend: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    x = image_batch()
    if wrong is not None:
        spoil(monkeypatch, wrong, 1 + accelerator.KERNEL_TOLERANCE / 2)
    model = cretta.adapt(Amplifying(), "tent")
    expected = cretta.adapt(Amplifying(), "tent", fuse=False).predict(x)
    with caplog.at_level(logging.WARNING, "cretta"):
        logits = model(x)
    assert model.backend.name == backend, model.backend
    off = float((logits - expected).abs().max())
    assert (off > accelerator.LOGIT_TOLERANCE) == (wrong is None)
    assert ("its logits differ by" in caplog.text) == (wrong is not None)


@needs_kernels
@pytest.mark.parametrize("name", WITH_KERNELS)
def test_every_result_of_the_kernels_is_compared(name: str) -> None:
    module, x = learning(WITH_KERNELS[name]()), image_batch(True)
    network = rewrite(module, learns=True)
    assert isinstance(network, nn.Module)
    run: list[str] = []
    with pytest.MonkeyPatch.context() as patch:
        call = kernels.Library.call

        def recorded(self: kernels.Library, name: str, *arguments: Any, label: str | None = None) -> None:
            run.append(label or name)
            if name == "cretta_batch_norm_relu_backward":
                # The gradients of γ, β and x, and that of the shortcut if there is one.
                run.extend(["more"] * (2 + (arguments[6] is not None)))
            call(self, name, *arguments, label=label)

        patch.setattr(kernels.Library, "call", recorded)
        with kernels.compared("avx2") as (errors, _):
            network(x.requires_grad_()).square().sum().backward()
    assert len(errors) == len(run)
    assert (run.count("more") > 2 * run.count("cretta_batch_norm_relu_backward")) == (name == "ResNet")
    assert 0 < max(errors) < 1e-4


# What verification leaves unchanged.


class Counting(nn.Module):
    """A network that draws random numbers and writes to its buffers: in place or, if it ``assigns``, by assignment."""

    count: Tensor

    def __init__(self, assigns: bool) -> None:
        super().__init__()
        self.assigns = assigns
        self.inner = wide_net()
        self.register_buffer("count", torch.zeros(()))

    def forward(self, x: Tensor) -> Tensor:
        if self.assigns:
            self.count = self.count + 1
        else:
            self.count.add_(1)
        logits: Tensor = self.inner(x)
        return logits + 0 * torch.rand_like(logits)


@pytest.mark.parametrize("assigns", [False, True])
def test_a_network_that_writes_to_its_buffers_stays_plain(assigns: bool) -> None:
    x = image_batch()
    for fuse in (True, False):
        torch.manual_seed(7)
        model = cretta.adapt(Counting(assigns), "source", fuse=fuse)
        for _ in range(3):
            model(x)
        assert model.model.module.get_buffer("count") == 3
        if fuse:
            numbers = torch.rand(3)
            assert str(model.backend) == "plain: Counting writes to its buffers in its forward method"
    assert torch.equal(torch.rand(3), numbers)


def test_verification_runs_the_plain_network_once_on_half_of_the_batch() -> None:
    model = cretta.adapt(wide_net(), "tent")
    sizes: list[int] = []
    results = accelerator.Accelerator.results

    def counted(self: Any, network: Any, x: Tensor, logits: Any) -> list[Tensor]:
        if network is model.model.module:
            sizes.append(len(x))
        return results(self, network, x, logits)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(accelerator.Accelerator, "results", counted)
        model(textbook.batches((9,))[0])
        model(textbook.batches((9,))[0])
    assert sizes == [5]


# Rewritten networks.


def classifier(net: nn.Module, *, learns: bool = True, fuse: bool = True, statistics: str = "batch") -> Network:
    module = learning(net, statistics) if learns else copy_sharing_parameters(net)
    statistics = statistics if learns else "running"
    return Network(module, NormStatistics(module, statistics, StreamAverage()), learns=learns, fuse=fuse)


@pytest.mark.parametrize("learns", [True, False])
@pytest.mark.parametrize("case", NETS)
def test_a_rewritten_network_that_computes_the_same_is_used(case: str, learns: bool) -> None:
    model, x = classifier(NETS[case](), learns=learns), image_batch()
    expected = classifier(NETS[case](), learns=learns, fuse=False)(x)
    for _ in range(2):
        assert_close(model(x), expected, 1e-5)
    assert model.backend.name != "plain"


@pytest.mark.parametrize("learns", [True, False])
@pytest.mark.parametrize("case", UNTRUSTED)
def test_a_rewritten_network_that_computes_something_else_is_rejected(case: str, learns: bool) -> None:
    model, plain = (classifier(UNTRUSTED[case](), learns=learns, fuse=fuse) for fuse in (True, False))
    x = image_batch()
    for _ in range(2):
        logits = []
        for network in (model, plain):
            network(x)
            torch.manual_seed(3)
            logits.append(network(x))
        assert model.backend.name == "plain" or case == "under_no_grad"
        assert_close(logits[0], logits[1], 1e-5)


@pytest.mark.parametrize("case", UNTRUSTED)
@pytest.mark.parametrize("method", ["tent", "source"])
def test_an_adapter_of_such_a_network_computes_the_same_as_without_rewriting(case: str, method: str) -> None:
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
    """Add an error to the logits, or multiply the gradients by ``factor``."""

    def __init__(self, module: nn.Module, by: float = 0.0, factor: float = 1.0) -> None:
        super().__init__()
        self.module, self.by, self.factor = module, by, factor

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.module(x)
        changed = self.factor * logits + (1 - self.factor) * logits.detach()
        return changed + self.by * torch.arange(logits.shape[1])


class Broken(nn.Module):
    """Return something else than finite logits."""

    def __init__(self, how: str) -> None:
        super().__init__()
        self.how = how

    def forward(self, x: Tensor) -> Any:
        if self.how == "raises":
            raise RuntimeError("broken")
        return {"nan": torch.full((len(x), 5), torch.nan), "shape": torch.zeros(len(x), 7), "none": None}[self.how]


WRONG: dict[str, Callable[[nn.Module], nn.Module]] = {
    "logits": lambda module: Off(module, by=1.0),
    "logits by little": lambda module: Off(module, by=0.03),
    "gradients of none": lambda module: Off(module, factor=0.0),
    "gradients of half": lambda module: Off(module, factor=0.5),
    "gradients of the other sign": lambda module: Off(module, factor=-1.0),
    "gradients by little": lambda module: Off(module, factor=1.02),
    "numbers": lambda _: Broken("nan"),
    "shapes": lambda _: Broken("shape"),
    "an exception": lambda _: Broken("raises"),
    "no tensor": lambda _: Broken("none"),
}


@pytest.mark.parametrize("confidence", [0.1, 20.0])
@pytest.mark.parametrize("case", WRONG)
def test_a_wrong_rewriting_is_rejected(case: str, confidence: float, monkeypatch: pytest.MonkeyPatch) -> None:
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


def test_wrong_logits_of_the_source_model_are_rejected(monkeypatch: pytest.MonkeyPatch) -> None:
    net, stream = textbook.small_net(), textbook.batches((6, 6, 6))
    buffer = cretta.SourceBuffer(textbook.source_images(8), augment="none")
    expected = cretta.adapt(net, "cretta", buffer=buffer, fuse=False, lr=1e-2)
    logits = [expected(x) for x in stream]
    monkeypatch.setattr(accelerator, "rewrite", lambda module, learns, call: Off(module, 0.0 if learns else 0.5))
    model = cretta.adapt(net, "cretta", buffer=buffer, fuse=True, lr=1e-2)
    for x, other in zip(stream, logits, strict=True):
        assert_close(model(x), other, 1e-6)


def test_a_correct_rewriting_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(accelerator, "rewrite", lambda module, **_: Off(module))
    model, (x,) = cretta.adapt(textbook.small_net(), "tent", fuse=True), textbook.batches((6,))
    model(x)
    assert model.backend.name == "rewritten"


def test_verification_is_not_part_of_the_stream() -> None:
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
def test_predictions_use_the_rewritten_network_too(method: str) -> None:
    model, x = cretta.adapt(textbook.small_net(), method), image_batch()
    logits = model.predict(x)
    assert model.backend.name != "plain"
    assert_close(logits, cretta.adapt(textbook.small_net(), method, fuse=False).predict(x), 1e-5)


def test_a_batch_of_one_and_then_more() -> None:
    """One value per channel has no statistics; that must not decide for good."""
    net = nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.ReLU(), nn.Linear(6, 5))
    torch.manual_seed(0)
    x = torch.randn(6, 4)
    model = cretta.adapt(textbook.settle(net, [x]), "tent")
    with pytest.raises(cretta.BatchError, match="too small"):
        model(x[:1])
    expected = cretta.adapt(net, "tent", fuse=False)
    assert_close(model(x), expected(x), 1e-5)
    assert model.backend.name != "plain"


def test_without_fuse_the_network_is_not_rewritten() -> None:
    model = cretta.adapt(textbook.small_net(), "tent", fuse=False)
    model(image_batch())
    assert model.backend.name == "plain"
