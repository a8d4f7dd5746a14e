from __future__ import annotations

import math
import warnings
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import cretta
import textbook
from cretta.errors import BatchError, ModelError
from cretta.normalization import STATISTICS, norm_layers, norm_parameter_names, prior_weight

DOUBLE = torch.float64
ALPHA = 0.3
Pair = tuple[Tensor, Tensor]


# A network written out by hand: every mean, variance and normalization is spelled out.


def moments(x: Tensor) -> Pair:
    """Mean and biased variance of each channel, from their definitions."""
    count = x.numel() / x.shape[1]
    axes = [axis for axis in range(x.dim()) if axis != 1]
    mean = x.sum(axes) / count
    return mean, ((x - mean.view(1, -1, *[1] * (x.dim() - 2))) ** 2).sum(axes) / count


def normalize(x: Tensor, mean: Tensor, variance: Tensor, gamma: Tensor, beta: Tensor, eps: float) -> Tensor:
    def wide(v: Tensor) -> Tensor:
        return v.view(1, -1, *[1] * (x.dim() - 2))

    return wide(gamma) * (x - wide(mean)) / (wide(variance) + eps) ** 0.5 + wide(beta)


def weight_by_hand(logits: Tensor, size: int) -> float:
    """n / (N + n) with N = 32 / s⁴, and s the share of the expected classes that the source model sees."""
    if size == 1:
        return 0.0
    rows = logits.softmax(-1).tolist()
    mix = [sum(column) / len(rows) for column in zip(*rows, strict=True)]
    answers = Counter(row.index(max(row)) for row in rows)
    answered = math.exp(-sum(n / len(rows) * math.log(n / len(rows)) for n in answers.values()))
    seen = min(math.exp(-sum(p * math.log(p) for p in mix)), 1.25 * answered)
    expected = sum(1 - (1 - 1 / len(mix)) ** len(rows) for _ in mix)
    prior = 32 / min(1.0, seen / expected) ** 4
    return size / (prior + size) if size / (prior + size) >= 0.2 else 0.0


class ByHand:
    """SmallNet with any statistics; ``averages`` are the moving ones, by layer."""

    def __init__(self, net: textbook.SmallNet, statistics: str, alpha: float = ALPHA) -> None:
        self.net, self.statistics, self.alpha = net, statistics, alpha
        self.gammas = {n: net.get_parameter(f"{n}.weight").detach().clone().requires_grad_() for n in ("bn1", "bn2")}
        self.betas = {n: net.get_parameter(f"{n}.bias").detach().clone().requires_grad_() for n in ("bn1", "bn2")}
        self.training = {n: self.of_training(n) for n in ("bn1", "bn2")}
        self.averages = dict(self.training)

    def of_training(self, name: str) -> Pair:
        layer = self.net.get_submodule(name)
        assert isinstance(layer, nn.BatchNorm2d)
        assert layer.running_mean is not None
        assert layer.running_var is not None
        return layer.running_mean.clone(), layer.running_var.clone()

    def layer(self, name: str, x: Tensor, base: dict[str, Pair], follow: dict[str, Pair]) -> Tensor:
        mean, variance = moments(x)
        if self.statistics == "running":
            mean, variance = self.training[name]
        elif self.statistics in ("mixture", "moving", "auto"):
            mean = self.alpha * mean + (1 - self.alpha) * base[name][0]
            variance = self.alpha * variance + (1 - self.alpha) * base[name][1]
        follow[name] = (mean.detach(), variance.detach())
        return normalize(x, mean, variance, self.gammas[name], self.betas[name], 1e-5)

    def __call__(self, x: Tensor, role: str = "target", *, follow: bool = False) -> Tensor:
        base = self.averages if self.statistics == "moving" and role == "target" else self.training
        seen: dict[str, Pair] = {}
        x = torch.relu(self.layer("bn1", self.net.conv1(x), base, seen))
        x = torch.relu(self.layer("bn2", self.net.conv2(x), base, seen))
        if follow:
            self.averages = seen
        logits: Tensor = self.net.fc(x.mean((2, 3)))
        return logits


def net_and_stream(dtype: torch.dtype = DOUBLE) -> tuple[textbook.SmallNet, list[Tensor]]:
    return textbook.small_net(dtype=dtype), textbook.batches((8, 5, 8), dtype=dtype)


def close(got: Tensor, expected: Tensor, tolerance: float = 1e-9) -> None:
    torch.testing.assert_close(got.detach(), expected.detach(), rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("statistics", STATISTICS)
def test_logits_equal_those_by_hand(statistics: str) -> None:
    net, (x, *_) = net_and_stream()
    if statistics == "auto":
        x = textbook.source_images(48, seed=3, dtype=DOUBLE)  # enough, of many classes, for a weight above 0
        net.fc.bias.data -= net(x).detach().mean(0)
        assert weight_by_hand(net(x), len(x)) > 0.2
    model = cretta.adapt(net, "tent", statistics=statistics, batch_weight=ALPHA)
    alpha = weight_by_hand(net(x), len(x)) if statistics == "auto" else ALPHA
    close(model.predict(x), ByHand(net, statistics, alpha)(x))


def test_the_statistics_are_four_different_things() -> None:
    net, (x, *_) = net_and_stream()
    model = cretta.adapt(net, "tent", statistics="moving", batch_weight=ALPHA)
    model(x)
    found = [cretta.adapt(net, "tent", statistics=s, batch_weight=ALPHA).predict(x) for s in STATISTICS[:3]]
    found.append(model.predict(x))
    for i, a in enumerate(found):
        for b in found[i + 1 :]:
            assert (a - b).abs().max() > 1e-2


@pytest.mark.parametrize("statistics", STATISTICS)
@pytest.mark.parametrize("role", ["target", "source"])
def test_gradients_equal_those_by_hand(statistics: str, role: Any) -> None:
    """Through the batch's share of mean and variance too: γ and β of the first layer move those of the second."""
    net, (x, *_) = net_and_stream()
    model = cretta.adapt(net, "tent", statistics=statistics, batch_weight=ALPHA)
    # Of a batch that was not announced, "auto" has the weight of the last one; of source samples, that of all classes.
    alpha = len(x) / (32 + len(x)) if (statistics, role) == ("auto", "source") else ALPHA
    hand = ByHand(net, statistics, alpha)
    loss = textbook.entropy(getattr(model.model, "source" if role == "source" else "__call__")(x)).mean()
    expected = textbook.entropy(hand(x, role)).mean()
    for name in ("bn1", "bn2"):
        module = model.model.module
        mine = torch.autograd.grad(
            loss, [module.get_parameter(f"{name}.weight"), module.get_parameter(f"{name}.bias")], retain_graph=True
        )
        theirs = torch.autograd.grad(expected, [hand.gammas[name], hand.betas[name]], retain_graph=True)
        for one, other in zip(mine, theirs, strict=True):
            assert other.abs().max() > 1e-4
            close(one, other)


def test_a_mixture_that_is_all_batch_is_the_batch() -> None:
    net, stream = net_and_stream()
    one = cretta.adapt(net, "tent", statistics="mixture", batch_weight=1.0, lr=1e-2)
    other = cretta.adapt(net, "tent", statistics="batch", lr=1e-2)
    for x in stream:
        slopes = []
        for model in (one, other):
            loss = textbook.entropy(model.model(x)).mean()
            slopes.append(torch.autograd.grad(loss, [p for p in model.model.module.parameters() if p.requires_grad]))
        for a, b in zip(*slopes, strict=True):
            close(a, b)
        close(one(x), other(x))


def test_a_mixture_with_little_batch_is_near_training() -> None:
    net, (x, *_) = net_and_stream()
    one = cretta.adapt(net, "tent", statistics="mixture", batch_weight=1e-9).predict(x)
    close(one, cretta.adapt(net, "source").predict(x), 1e-6)


# The moving average.


@pytest.mark.parametrize("method", ["bn_adapt", "tent", "cretta"])
def test_the_moving_average_follows_its_law(method: str) -> None:
    """μ ← (1 - α)μ + α·batch, from training's statistics on; each batch is normalized with the new μ.

    The learning rate is so small that the activations are those of the source model.
    """
    net, stream = net_and_stream()
    buffer = cretta.SourceBuffer(textbook.source_images(7, dtype=DOUBLE), augment="none")
    options: dict[str, Any] = {} if method == "bn_adapt" else {"lr": 1e-14}
    model = cretta.adapt(net, method, buffer=buffer, statistics="moving", batch_weight=ALPHA, **options)
    hand = ByHand(net, "moving")
    for x in stream:
        close(model.predict(x), hand(x), 1e-8)
        close(model(x), hand(x, follow=True), 1e-8)
        state = model.state.snapshot()
        for name, (mean, variance) in hand.averages.items():
            close(state[f"statistics.mean.{name}"], mean, 1e-8)
            close(state[f"statistics.variance.{name}"], variance, 1e-8)
            assert (mean - hand.training[name][0]).abs().max() > 0.02


def test_the_first_layers_average_is_the_law_in_closed_form() -> None:
    """After three batches: (1-α)³ μ₀ + α((1-α)² m₁ + (1-α) m₂ + m₃), whatever the adapting did to γ and β."""
    net, stream = net_and_stream()
    model = cretta.adapt(net, "tent", statistics="moving", batch_weight=ALPHA, lr=1e-2, predict="after", steps=2)
    for x in stream:
        model(x)
    batch = [moments(net.conv1(x)) for x in stream]
    start = ByHand(net, "moving").training["bn1"]
    keep = 1 - ALPHA
    for k, kind in enumerate(("mean", "variance")):
        expected = keep**3 * start[k] + ALPHA * (keep**2 * batch[0][k] + keep * batch[1][k] + batch[2][k])
        close(model.state.snapshot()[f"statistics.{kind}.bn1"], expected)


def test_source_batches_are_no_part_of_the_stream() -> None:
    net, (x, *_) = net_and_stream()
    images = 3 - 2 * textbook.source_images(8, dtype=DOUBLE)
    buffer = cretta.SourceBuffer(images, augment="none")
    model = cretta.adapt(net, "cretta", buffer=buffer, statistics="moving", batch_weight=ALPHA, lr=1e-14)
    without = cretta.adapt(net, "bn_adapt", statistics="moving", batch_weight=ALPHA)
    hand = ByHand(net, "moving")
    for _ in range(3):
        model(x)
        without(x)
        # A source batch is mixed with training's statistics however far the stream has come.
        close(model.model.source(images), hand(images, "source"), 1e-8)
    for name in ("statistics.mean.bn1", "statistics.variance.bn1", "statistics.mean.bn2", "statistics.variance.bn2"):
        close(model.state.snapshot()[name], without.state.snapshot()[name], 1e-8)


@pytest.mark.parametrize("method", ["bn_adapt", "tent"])
def test_predict_does_not_touch_the_average(method: str) -> None:
    net, stream = net_and_stream()
    model = cretta.adapt(net, method, statistics="moving", batch_weight=ALPHA)
    model(stream[0])
    before = model.state.snapshot()
    for x in stream:
        model.predict(x)
        model.predict(10 + x)
    textbook.assert_bits(model.state.snapshot(), before)
    undisturbed = cretta.adapt(net, method, statistics="moving", batch_weight=ALPHA)
    undisturbed(stream[0])
    assert torch.equal(model(stream[1]), undisturbed(stream[1]))


@pytest.mark.parametrize("statistics", ["mixture", "moving"])
def test_a_batch_reference_has_the_adapting_models_statistics(statistics: str) -> None:
    """So that with θ = φ the residual logit is zero and w a half, however the stream has moved the average."""
    net, stream = net_and_stream(torch.float32)
    buffer = cretta.SourceBuffer(textbook.source_images(7), augment="none")
    model = cretta.CreTTA(net, buffer, reference="batch", statistics=statistics, lr=1e-12)
    for x in stream:
        model(x)
        assert model.last.weight == pytest.approx(0.5, abs=1e-6)
    model = cretta.CreTTA(net, buffer, reference="running", statistics=statistics, lr=1e-12)
    model(stream[0])
    assert model.last.weight is not None
    assert abs(model.last.weight - 0.5) > 1e-3


def test_the_users_running_statistics_are_read_not_written() -> None:
    net, stream = net_and_stream(torch.float32)
    kept = {n: b.clone() for n, b in net.named_buffers()}
    for statistics in STATISTICS:
        model = cretta.adapt(net, "tent", statistics=statistics, predict="after")
        for x in stream:
            model(x)
    textbook.assert_bits(dict(net.named_buffers()), kept)


# Small and one-sided batches.


def features_net(dtype: torch.dtype = torch.float32) -> nn.Module:
    """Ends in BatchNorm1d on (B, F): a batch of one has one value a channel."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        net = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 5), nn.BatchNorm1d(5)).to(dtype)
    generator = torch.Generator().manual_seed(0)
    return textbook.settle(net, torch.randn(32, 6, generator=generator, dtype=torch.float64).to(dtype).split(8))


def features(count: int, seed: int = 1) -> Tensor:
    return 1 + 2 * torch.randn(count, 6, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("statistics", ["mixture", "moving", "running"])
@pytest.mark.parametrize("method", ["tent", "cretta"])
def test_a_batch_of_one(method: str, statistics: str) -> None:
    net = features_net()
    buffer = cretta.SourceBuffer(features(7, seed=3), augment="none")
    model = cretta.adapt(net, method, buffer=buffer, statistics=statistics, lr=1e-2)
    first = model.state.snapshot()["parameters.0"]
    for x in features(6).split(1):
        logits = model(x)
        assert logits.shape == (1, 5)
        assert torch.isfinite(logits).all()
        assert model.last.adapted
    assert not torch.equal(model.state.snapshot()["parameters.0"], first)


@pytest.mark.parametrize("method", ["tent", "cretta", "bn_adapt"])
def test_a_batch_of_one_without_company_gets_advice(method: str) -> None:
    buffer = cretta.SourceBuffer(features(7, seed=3), augment="none")
    model = cretta.adapt(features_net(), method, buffer=buffer)
    model(features(4))
    before = model.state.snapshot()
    for use in (model, model.predict):
        with pytest.raises(BatchError, match=r"batch of 1 is too small.*'mixture', 'moving' or 'running'"):
            use(features(1))
        textbook.assert_bits(model.state.snapshot(), before)


@pytest.mark.parametrize("statistics", STATISTICS)
@pytest.mark.parametrize("method", ["tent", "cretta"])
def test_one_image_again_and_again(method: str, statistics: str) -> None:
    """Every sample alike: the variance over the batch is all but zero at the end of the network."""
    net = textbook.small_net()
    buffer = cretta.SourceBuffer(textbook.source_images(7), augment="none")
    model = cretta.adapt(net, method, buffer=buffer, statistics=statistics, lr=1e-2)
    for x in textbook.batches((1, 1, 1)):
        for batch in (x.expand(8, -1, -1, -1), torch.full_like(x, 0.5).expand(8, -1, -1, -1)):
            assert torch.isfinite(model(batch)).all()
            assert model.last.adapted or statistics == "auto"
    assert all(torch.isfinite(v).all() for v in model.state.snapshot().values() if v.is_floating_point())


# The prior, and what moving statistics reject.


def test_the_prior_depends_on_size_and_classes() -> None:
    certain = 50 * torch.eye(10)
    balanced, one, two = certain.repeat(4, 1), certain[[3] * 40], certain[[3, 7] * 20]
    weights = [prior_weight(40, logits) for logits in (balanced, two, one)]
    assert weights[0] == pytest.approx(40 / (32 + 40), rel=0.01)
    assert weights[2] == 0.0
    five = prior_weight(200, certain[:5].repeat(8, 1))  # 9.85 of 10 classes are expected of 40
    assert five == pytest.approx(200 / (32 * (9.85 / 5) ** 4 + 200), rel=0.01)
    assert prior_weight(200, balanced) > weights[0] > prior_weight(4, balanced[:4])
    assert prior_weight(1, balanced[:1]) == 0.0
    assert prior_weight(8, torch.full((8, 3), math.nan)) == 0.0


def test_an_underconfident_network_sees_no_more_classes_than_it_answers() -> None:
    """Smoothed labels give all classes some probability, even if all images are of one class."""
    flat = 3 * torch.eye(100)
    one, many = flat[[3] * 40], flat[:40]
    assert math.exp(float(torch.special.entr(one.softmax(-1).mean(0)).sum())) > 33.1  # expected of 40 images
    assert prior_weight(200, one) == 0.0
    assert prior_weight(200, many) == pytest.approx(200 / 232)


def test_one_image_under_auto_is_the_source_model_and_teaches_nothing() -> None:
    net, (x, *_) = net_and_stream()
    model = cretta.adapt(net, "tent", statistics="auto")
    before = model.state.snapshot()
    close(model(x[:1]), net(x[:1]))
    assert (model.last.adapted, model.last.skipped) == (False, False)
    assert model.last.reason == "too few images or classes to learn from"
    textbook.assert_bits(model.state.snapshot(), before)


@pytest.mark.parametrize("bad", ["scale", "constant", "overflow"])
def test_moving_statistics_reject_a_batch_far_from_the_stream(bad: str) -> None:
    net, stream = net_and_stream(torch.float32)
    model, undisturbed = (cretta.adapt(net, "bn_adapt", statistics="moving") for _ in range(2))
    for x in stream:
        model(x)
        assert model.last.reason == ""
        undisturbed(x)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        x = stream[0]
        model({"scale": 9 * x, "constant": torch.full_like(x, 0.3), "overflow": 1e18 * x}[bad])
    textbook.assert_bits(model.state.snapshot(), undisturbed.state.snapshot())
    if bad != "overflow":  # that is outside the range of inputs, too
        assert "far from the stream" in model.last.reason
    assert torch.equal(model(stream[1]), undisturbed(stream[1]))


# Layers.


LAYERS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "BatchNorm1d on features": (lambda: nn.BatchNorm1d(5), (6, 5)),
    "BatchNorm1d on sequences": (lambda: nn.BatchNorm1d(5), (6, 5, 7)),
    "BatchNorm2d": (lambda: nn.BatchNorm2d(5), (6, 5, 4, 3)),
    "BatchNorm3d": (lambda: nn.BatchNorm3d(5), (6, 5, 4, 3, 2)),
    "a large eps": (lambda: nn.BatchNorm2d(5, eps=0.3), (6, 5, 4, 3)),
    "SyncBatchNorm": (lambda: nn.SyncBatchNorm(5), (6, 5, 4, 3)),
}


class Headed(nn.Module):
    """One norm layer, then the mean of each channel."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, x: Tensor) -> Tensor:
        x = self.layer(x)
        return x.square().flatten(2).mean(2) if x.dim() > 2 else x


@pytest.mark.parametrize("name", LAYERS)
@pytest.mark.parametrize("statistics", STATISTICS)
def test_each_kind_of_batch_norm_by_hand(name: str, statistics: str) -> None:
    build, shape = LAYERS[name]
    generator = torch.Generator().manual_seed(0)
    x = 3 * torch.randn(*shape, generator=generator, dtype=DOUBLE) + 1
    layer = build().double()
    if name == "SyncBatchNorm":  # trains on GPUs only
        layer.running_mean, layer.running_var = torch.full((5,), 0.4).double(), torch.full((5,), 2.0).double()
        layer.eval()
    else:
        textbook.settle(layer, [x / 2, x / 3 + 1])
    assert isinstance(layer, nn.modules.batchnorm._BatchNorm)
    assert layer.running_mean is not None
    assert layer.running_var is not None
    model = cretta.adapt(Headed(layer), "tent", statistics=statistics, batch_weight=ALPHA)
    mean, variance = moments(x)
    if statistics == "running":
        mean, variance = layer.running_mean, layer.running_var
    elif statistics in ("mixture", "moving", "auto"):
        alpha = weight_by_hand(Headed(layer.eval())(x), len(x)) if statistics == "auto" else ALPHA
        mean = alpha * mean + (1 - alpha) * layer.running_mean
        variance = alpha * variance + (1 - alpha) * layer.running_var
    y = normalize(x, mean, variance, layer.weight, layer.bias, layer.eps)
    close(model.predict(x), y.square().flatten(2).mean(2) if y.dim() > 2 else y)


@pytest.mark.parametrize("statistics", STATISTICS)
def test_instance_norm_uses_each_image_unless_training_is_asked_for(statistics: str) -> None:
    x = textbook.batches((6,), dtype=DOUBLE)[0]
    layer = nn.InstanceNorm2d(3, affine=True, track_running_stats=True).double()
    textbook.settle(layer, [x / 2, x / 3 + 1])
    assert layer.running_mean is not None
    assert layer.running_var is not None
    model = cretta.adapt(Headed(layer), "tent", statistics=statistics)
    for _ in range(2):
        got = model.predict(x)
    expected = []
    for image in x:
        mean, variance = moments(image[None])
        if statistics == "running":
            mean, variance = layer.running_mean, layer.running_var
        y = normalize(image[None], mean, variance, layer.weight, layer.bias, layer.eps)
        expected.append(y.square().flatten(2).mean(2))
    close(got, torch.cat(expected))


@pytest.mark.parametrize("statistics", ["running", "mixture", "moving"])
def test_without_running_statistics_there_is_nothing_to_mix(statistics: str) -> None:
    net = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4, track_running_stats=False), nn.Flatten())
    with pytest.raises(ModelError, match=r"'1'.*track_running_stats=False.*statistics='batch'"):
        cretta.adapt(net, "tent", statistics=statistics)
    assert torch.isfinite(cretta.adapt(net, "tent", statistics="batch")(textbook.batches((4,))[0])).all()


def test_a_layer_used_twice_comes_once() -> None:
    norm = nn.BatchNorm2d(3)
    net = nn.Sequential(norm, nn.ReLU(), norm)
    assert [name for name, _ in norm_layers(net)] == ["0"]
    assert norm_parameter_names(net) == ["0.weight", "0.bias"]


def test_names_of_gamma_and_beta() -> None:
    net = nn.Sequential(
        nn.Conv2d(3, 4, 1),
        nn.BatchNorm2d(4),
        nn.Sequential(nn.GroupNorm(2, 4), nn.LayerNorm(8, bias=False)),
        nn.BatchNorm2d(4, affine=False),
        nn.InstanceNorm2d(4, affine=True),
        nn.InstanceNorm2d(4),
        nn.RMSNorm(8),
        nn.LocalResponseNorm(2),
    )
    expected = ["1.weight", "1.bias", "2.0.weight", "2.0.bias", "2.1.weight", "4.weight", "4.bias", "6.weight"]
    assert norm_parameter_names(net) == expected
    assert norm_parameter_names(net, ("2",)) == [n for n in expected if not n.startswith("2.")]
    assert norm_parameter_names(net, ("2.0", "6")) == [n for n in expected if not n.startswith(("2.0.", "6."))]
    assert norm_parameter_names(nn.LayerNorm(3)) == ["weight", "bias"]


@pytest.mark.parametrize("statistics", STATISTICS)
def test_a_layer_may_be_called_by_keyword(statistics: str) -> None:
    class Keyword(textbook.SmallNet):
        def forward(self, x: Tensor) -> Tensor:
            x = torch.relu(self.bn1(input=self.conv1(x)))
            x = torch.relu(self.bn2(input=self.conv2(x)))
            logits: Tensor = self.fc(x.mean((2, 3)))
            return logits

    net, (x, *_) = net_and_stream()
    keyword = Keyword().double()
    keyword.load_state_dict(net.state_dict())
    model = cretta.adapt(keyword, "tent", statistics=statistics, batch_weight=ALPHA)
    alpha = weight_by_hand(net(x), len(x)) if statistics == "auto" else ALPHA
    close(model.predict(x), ByHand(net, statistics, alpha)(x))


def test_a_fused_subclass_stays_whole() -> None:
    """Layers that do more than normalize, such as timm's BatchNormAct2d, do the rest under every statistics."""

    class Fused(nn.BatchNorm2d):
        def forward(self, input: Tensor) -> Tensor:
            return torch.relu(super().forward(input)) + 1

    x = textbook.batches((6,), dtype=DOUBLE)[0]
    fused = Fused(3).double()
    textbook.settle(fused, [x / 2, x / 3 + 1])
    assert fused.running_mean is not None
    assert fused.running_var is not None
    for statistics in STATISTICS:
        model = cretta.adapt(Headed(fused), "tent", statistics=statistics, batch_weight=ALPHA)
        mean, variance = moments(x)
        if statistics == "running":
            mean, variance = fused.running_mean, fused.running_var
        elif statistics != "batch":
            alpha = weight_by_hand(Headed(fused.eval())(x), len(x)) if statistics == "auto" else ALPHA
            mean = alpha * mean + (1 - alpha) * fused.running_mean
            variance = alpha * variance + (1 - alpha) * fused.running_var
        y = torch.relu(normalize(x, mean, variance, fused.weight, fused.bias, fused.eps)) + 1
        close(model.predict(x), y.square().flatten(2).mean(2))
