from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from cretta import functional as F
from cretta.errors import OptionError

LN2, LN3 = math.log(2), math.log(3)


def doubles(*values: float) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


def close(got: Tensor, expected: Tensor | float, tolerance: float = 1e-12) -> None:
    torch.testing.assert_close(
        got, torch.as_tensor(expected, dtype=got.dtype).expand(got.shape), rtol=tolerance, atol=tolerance
    )


# Numbers by hand.


def test_energy_by_hand() -> None:
    logits = torch.tensor([[0.0, LN3, -1e9], [0.0, LN2, math.log(5)]], dtype=torch.float64)
    # -ln(1 + 3 + 0) = -ln 4;  -ln(1 + 2 + 5) = -ln 8
    close(F.energy(logits), doubles(-math.log(4), -math.log(8)))


def test_energy_temperature_by_hand() -> None:
    # T = 2, logits (0, 2 ln 3): -2 · ln(e^0 + e^{ln 3}) = -2 ln 4
    close(F.energy(torch.tensor([[0.0, 2 * LN3]], dtype=torch.float64), temperature=2.0), -2 * math.log(4))
    # T = 1/2, logits (0, ln 3): -1/2 · ln(1 + e^{2 ln 3}) = -1/2 ln 10
    close(F.energy(torch.tensor([[0.0, LN3]], dtype=torch.float64), temperature=0.5), -0.5 * math.log(10))


def test_energy_moves_with_the_logits() -> None:
    """E(z + a) = E(z) - a, which a sign error in front of the logsumexp would turn round."""
    logits = torch.randn(7, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    close(F.energy(logits + 3.0), F.energy(logits) - 3.0)


def test_energy_is_over_the_classes() -> None:
    assert F.energy(torch.zeros(7, 4)).shape == (7,)
    close(F.energy(torch.zeros(7, 4, dtype=torch.float64)), -math.log(4))


@pytest.mark.parametrize("temperature", [0.0, -1.0, float("nan")])
def test_energy_refuses_a_temperature_that_is_none(temperature: float) -> None:
    with pytest.raises(OptionError, match=r"temperature=.*above 0"):
        F.energy(torch.zeros(1, 2), temperature)


def test_entropy_by_hand() -> None:
    logits = torch.tensor([[0.0, LN3], [5.0, 5.0]], dtype=torch.float64)
    # p = (1/4, 3/4): H = 1/4 ln 4 + 3/4 ln(4/3);  p = (1/2, 1/2): H = ln 2
    close(F.entropy(logits), doubles(math.log(4) / 4 + 0.75 * math.log(4 / 3), LN2))


def test_residual_logit_by_hand() -> None:
    e_t, e_s, p_t, p_s = doubles(-5, -1), doubles(-4, -2), doubles(-3, -2.5), doubles(-6, -2)
    # 2·((-3 + 6) - (-5 + 4)) = 2·(3 + 1) = 8;  2·((-2.5 + 2) - (-1 + 2)) = 2·(-0.5 - 1) = -3
    close(F.residual_logit(e_t, e_s, p_t, p_s, beta=2.0), doubles(8, -3))
    # With α = 1/2: 2·((-3 + 5) - (-6 + 4)/2) = 2·(2 + 1) = 6;  2·((-2.5 + 1) - (-2 + 2)/2) = -3
    close(F.residual_logit(e_t, e_s, p_t, p_s, beta=2.0, contrast=0.5), doubles(6, -3))
    # With α = 0 only the target counts: 2·(-3 + 5) = 4;  2·(-2.5 + 1) = -3
    close(F.residual_logit(e_t, e_s, p_t, p_s, beta=2.0, contrast=0.0), doubles(4, -3))
    # A source model that had the same opinion leaves nothing.
    close(F.residual_logit(e_t, e_s, e_t, e_s, beta=2.0), doubles(0, 0))


def test_pairwise_logit_by_hand() -> None:
    # -3·(-5 + 4) = 3;  -3·(-1 + 2) = -3
    close(F.pairwise_logit(doubles(-5, -1), doubles(-4, -2), beta=3.0), doubles(3, -3))


def test_contrastive_loss_by_hand() -> None:
    # σ(0) = 1/2, σ(ln 3) = 3/4: -(ln 1/2 + ln 3/4) / 2 = (ln 2 + ln 4/3) / 2
    close(F.contrastive_loss(doubles(0, LN3)), (LN2 + math.log(4 / 3)) / 2)
    # A larger logit, which is the target preferred, must cost less.
    assert F.contrastive_loss(doubles(2.0)) < F.contrastive_loss(doubles(-2.0))


def test_gradient_weight_by_hand() -> None:
    # w = σ(-l): 1/2, 1/4, 3/4 for l = 0, ln 3, -ln 3
    close(F.gradient_weight(doubles(0, LN3, -LN3)), doubles(0.5, 0.25, 0.75))


def test_weighted_loss_by_hand() -> None:
    # mean of 0.5·2·(-5 + 4) = -1 and 0.25·2·(-1 + 2) = 0.5
    close(F.weighted_loss(doubles(-5, -1), doubles(-4, -2), doubles(0.5, 0.25), beta=2.0), -0.25)


def test_target_loss_by_hand() -> None:
    close(F.target_loss(doubles(-5, -1)), -3.0)


def test_nce_loss_by_hand() -> None:
    # r(x_t) = -(-5 + 3) = 2, r(x_s) = -(-4 + 4.5) = -0.5
    # -ln σ(2) - ln(1 - σ(-0.5)) = ln(1 + e^-2) + ln(1 + e^-0.5) = 0.12693 + 0.47408
    energies = doubles(-5), doubles(-4), doubles(-3), doubles(-4.5)
    close(F.nce_loss(*energies), math.log(1 + math.exp(-2)) + math.log(1 + math.exp(-0.5)))
    # c = 1: r = 3 and 0.5: ln(1 + e^-3) + ln(1 + e^0.5)
    close(F.nce_loss(*energies, constant=1.0), math.log(1 + math.exp(-3)) + math.log(1 + math.exp(0.5)))


def test_nce_takes_the_means_apart() -> None:
    """Three targets and one source: each side is a mean of its own, not a mean over four."""
    e_t, p_t, e_s, p_s = doubles(-5, -5, -5), doubles(-3, -3, -3), doubles(-4), doubles(-4.5)
    close(F.nce_loss(e_t, e_s, p_t, p_s), math.log(1 + math.exp(-2)) + math.log(1 + math.exp(-0.5)))


def test_nce_constant_by_hand() -> None:
    # One sample each: σ(r_s + c) = σ(-(r_t + c)) ⇒ c = -(r_t + r_s) / 2 = -(2 - 0.5) / 2
    close(F.nce_constant(doubles(-5), doubles(-4), doubles(-3), doubles(-4.5)), -0.75, 1e-9)


# Eq. 5.


def mlp() -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(3)
        return nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 3)).double()


def gradients(value: Tensor, net: nn.Module) -> list[Tensor]:
    return list(torch.autograd.grad(value, list(net.parameters())))


def samples(count: int, seed: int) -> Tensor:
    return 2 * torch.randn(count, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("beta", [1.0, 2.5])
@pytest.mark.parametrize("pairs", ["one_to_one", "cartesian"])
def test_the_gradient_is_equation_5(beta: float, pairs: str) -> None:
    """∇L = mean w·β(∇E_θ(x_t) - ∇E_θ(x_s)), each energy gradient taken alone and w by hand."""
    net, x_t, x_s = mlp(), samples(4, 0), samples(4, 1)
    p_t, p_s = samples(1, 2)[0], samples(1, 3)[0]

    e_t, e_s = F.energy(net(x_t)), F.energy(net(x_s))
    t, s = F.pair(e_t, e_s, pairs)
    logit = F.residual_logit(t, s, *F.pair(p_t, p_s, pairs), beta)
    got = gradients(F.contrastive_loss(logit), net)

    chosen = [(i, i) for i in range(4)] if pairs == "one_to_one" else [(i, j) for i in range(4) for j in range(4)]
    expected = [torch.zeros_like(p) for p in net.parameters()]
    for i, j in chosen:
        alone_t, alone_s = F.energy(net(x_t[i : i + 1]))[0], F.energy(net(x_s[j : j + 1]))[0]
        known, learned = (p_t[i] - p_s[j]).item(), (alone_t - alone_s).item()
        weight = 1 / (1 + math.exp(beta * (known - learned)))  # σ(-l)
        for total, g_t, g_s in zip(expected, gradients(alone_t, net), gradients(alone_s, net), strict=True):
            total += weight * beta * (g_t - g_s) / len(chosen)
    for one, other in zip(got, expected, strict=True):
        close(one, other, 1e-10)


def test_weighted_loss_with_w_has_the_gradient_of_the_loss() -> None:
    """The surrogate with w itself must descend just as Eq. 4; with other weights it must not."""
    net, x_t, x_s = mlp(), samples(5, 0), samples(5, 1)
    p_t, p_s = samples(2, 2).flatten()[:5], samples(2, 3).flatten()[:5]
    e_t, e_s = F.energy(net(x_t)), F.energy(net(x_s))
    logit = F.residual_logit(e_t, e_s, p_t, p_s, 2.0)
    expected = torch.autograd.grad(F.contrastive_loss(logit), list(net.parameters()), retain_graph=True)
    weight = F.gradient_weight(logit.detach())
    got = torch.autograd.grad(F.weighted_loss(e_t, e_s, weight, 2.0), list(net.parameters()), retain_graph=True)
    other = torch.autograd.grad(F.weighted_loss(e_t, e_s, 1 - weight, 2.0), list(net.parameters()))
    for one, two, three in zip(got, expected, other, strict=True):
        close(one, two, 1e-10)
        assert not torch.allclose(one, three)


def test_weighted_loss_scales_each_sample_by_its_weight() -> None:
    target, source = doubles(1, 2, 3).requires_grad_(), doubles(4, 5, 6).requires_grad_()
    weight = doubles(0.1, 0.7, 0.4)
    F.weighted_loss(target, source, weight, beta=3.0).backward()
    assert target.grad is not None
    assert source.grad is not None
    # w·β / 3
    close(target.grad, weight)
    close(source.grad, -weight)


def test_gradient_weight_does_not_depend_on_which_function_made_the_logit() -> None:
    """The weight is -dL/dl times the number of pairs."""
    logit = doubles(-3, -0.2, 0, 1.5).requires_grad_()
    F.contrastive_loss(logit).backward()
    assert logit.grad is not None
    close(-4 * logit.grad, F.gradient_weight(logit.detach()))


# Gradients by finite differences.


@pytest.mark.parametrize(
    "function",
    [
        lambda z: F.energy(z),
        lambda z: F.energy(z, 2.5),
        lambda z: F.entropy(z),
        lambda z: F.contrastive_loss(F.residual_logit(z[0], z[1], z[2], z[3], 2.0)),
        lambda z: F.contrastive_loss(F.pairwise_logit(*F.pair(z[0], z[1], "cartesian"), 0.5)),
        lambda z: F.weighted_loss(z[0], z[1], torch.linspace(0, 1, 5, dtype=z.dtype), 2.0),
        lambda z: F.nce_loss(z[0], z[1], z[2], z[3], 0.3),
    ],
    ids=["energy", "energy_temperature", "entropy", "residual", "pairwise_cartesian", "weighted", "nce"],
)
def test_gradcheck(function: Callable[[Tensor], Tensor]) -> None:
    z = torch.randn(4, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(4)).requires_grad_()
    assert torch.autograd.gradcheck(function, (z,))


def test_nce_gradient_passes_by_the_constant() -> None:
    """The constant is where the loss is stationary in it, so a detached one gives the whole gradient."""
    z = torch.randn(4, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(5)).requires_grad_()

    def profiled(z: Tensor) -> Tensor:
        return F.nce_loss(z[0], z[1], z[2], z[3], F.nce_constant(z[0], z[1], z[2], z[3]))

    assert not F.nce_constant(z[0], z[1], z[2], z[3]).requires_grad
    assert torch.autograd.gradcheck(profiled, (z,), eps=1e-5, atol=1e-6)


# Extremes.


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_logits_of_ten_thousand(dtype: torch.dtype) -> None:
    logits = torch.tensor([[1e4, -1e4], [-1e4, -1e4], [1e4, 1e4]], dtype=dtype, requires_grad=True)
    tolerance = 1e-6 if dtype == torch.float32 else 1e-12
    # The larger one rules; two equal ones add ln 2.
    close(F.energy(logits), torch.tensor([-1e4, 1e4 - LN2, -1e4 - LN2], dtype=dtype), tolerance)
    close(F.entropy(logits), torch.tensor([0.0, LN2, LN2], dtype=dtype), tolerance)
    (slope,) = torch.autograd.grad(F.energy(logits).sum() + F.entropy(logits).sum(), logits)
    # dE/dz = -p, to the rounding of a logit of 1e4: torch takes p as exp(z - logsumexp z).
    tolerance = 1e-3 if dtype == torch.float32 else 1e-12
    close(slope, torch.tensor([[-1.0, 0.0], [-0.5, -0.5], [-0.5, -0.5]], dtype=dtype), tolerance)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_residual_logits_of_ten_thousand(dtype: torch.dtype) -> None:
    logit = torch.tensor([1e4, -1e4], dtype=dtype, requires_grad=True)
    loss = F.contrastive_loss(logit)
    # -ln σ(1e4) = 0 and -ln σ(-1e4) = 1e4: the naive log of a sigmoid would be infinite.
    close(loss, 5e3)
    (slope,) = torch.autograd.grad(loss, logit)
    close(slope, torch.tensor([0.0, -0.5], dtype=dtype))
    close(F.gradient_weight(logit.detach()), torch.tensor([0.0, 1.0], dtype=dtype))


@pytest.mark.parametrize("scale", [1.0, 30.0, 1e4])
def test_bfloat16_logits_lose_no_more_than_their_rounding(scale: float) -> None:
    """The reference is the float64 value of the very same rounded logits."""
    generator = torch.Generator().manual_seed(6)
    rounded = (scale * torch.randn(32, 10, generator=generator)).to(torch.bfloat16)
    for got, exact in (
        (F.energy(rounded), F.energy(rounded.double())),
        (F.energy(rounded, 2.0), F.energy(rounded.double(), 2.0)),
        (F.entropy(rounded), F.entropy(rounded.double())),
    ):
        assert got.dtype == torch.float32
        torch.testing.assert_close(got.double(), exact, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_the_whole_loss_from_half_precision_logits(dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(7)
    logits = [(8 * torch.randn(16, 10, generator=generator)).to(dtype) for _ in range(4)]
    t, s, rt, rs = (F.energy(z) for z in logits)
    got = F.contrastive_loss(F.residual_logit(t, s, rt, rs, beta=2.0))
    t, s, rt, rs = (F.energy(z.double()) for z in logits)
    exact = F.contrastive_loss(F.residual_logit(t, s, rt, rs, beta=2.0))
    torch.testing.assert_close(got.double(), exact, rtol=1e-5, atol=1e-6)


# NCE's constant.


@pytest.mark.parametrize("scale", [1.0, 100.0])
@pytest.mark.parametrize(("targets", "sources"), [(8, 8), (8, 3), (1, 20)])
def test_the_constant_is_a_minimum(scale: float, targets: int, sources: int) -> None:
    generator = torch.Generator().manual_seed(targets + sources)
    e_t, p_t = (scale * torch.randn(targets, dtype=torch.float64, generator=generator) for _ in range(2))
    e_s, p_s = (scale * torch.randn(sources, dtype=torch.float64, generator=generator) + 2 for _ in range(2))
    c = F.nce_constant(e_t, e_s, p_t, p_s)
    here = F.nce_loss(e_t, e_s, p_t, p_s, c)
    for step in (1e-4, 1e-2, 1.0, 10.0):
        assert F.nce_loss(e_t, e_s, p_t, p_s, c + step) >= here - 1e-12
        assert F.nce_loss(e_t, e_s, p_t, p_s, c - step) >= here - 1e-12
    slope = (F.nce_loss(e_t, e_s, p_t, p_s, c + 1e-5) - F.nce_loss(e_t, e_s, p_t, p_s, c - 1e-5)) / 2e-5
    assert abs(slope.item()) < 1e-6


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_nce_with_energies_of_ten_thousand(dtype: torch.dtype) -> None:
    extreme = torch.tensor([1e4, -1e4, 3.0], dtype=dtype)
    still = torch.zeros(3, dtype=dtype)
    for e_t, e_s in ((extreme, still), (still, extreme), (still + 1e4, still - 1e4), (still - 1e4, still + 1e4)):
        e_t = e_t.clone().requires_grad_()
        c = F.nce_constant(e_t, e_s, still, still)
        loss = F.nce_loss(e_t, e_s, still, still, c)
        (slope,) = torch.autograd.grad(loss, e_t)
        assert torch.isfinite(c)
        assert torch.isfinite(loss)
        assert torch.isfinite(slope).all()
        # No constant does better.
        for other in (-2e4, -1e4, -1.0, 0.0, 1.0, 1e4, 2e4):
            assert loss.item() <= F.nce_loss(e_t, e_s, still, still, other).item() * (1 + 1e-6) + 1e-6


def test_the_constant_undoes_a_common_shift_of_energies() -> None:
    """A normalizer that multiplies all of p_θ moves every E_θ alike, and must not matter to 'non-residual'."""
    generator = torch.Generator().manual_seed(8)
    e_t, e_s, p_t, p_s = torch.randn(4, 6, dtype=torch.float64, generator=generator)
    without = F.nce_constant(e_t, e_s, p_t, p_s)
    shifted = F.nce_constant(e_t + 7, e_s + 7, p_t, p_s)
    close(shifted - without, 7.0, 1e-9)


# Pairs.


def looped(target: Tensor, source: Tensor) -> list[float]:
    return [float(target[i] - source[i % len(source)]) for i in range(len(target))]


@pytest.mark.parametrize(("targets", "sources"), [(4, 4), (4, 6), (7, 3), (6, 3), (5, 1), (1, 4), (1, 1)])
def test_pairs_one_to_one(targets: int, sources: int) -> None:
    target, source = torch.arange(1.0, targets + 1), 10 * torch.arange(1.0, sources + 1)
    t, s = F.pair(target, source)
    assert (t - s).tolist() == looped(target, source)


@pytest.mark.parametrize(("targets", "sources"), [(4, 4), (2, 5), (5, 2), (1, 1)])
def test_pairs_cartesian(targets: int, sources: int) -> None:
    target, source = torch.arange(1.0, targets + 1), 10 * torch.arange(1.0, sources + 1)
    t, s = F.pair(target, source, "cartesian")
    assert (t - s).tolist() == [[float(a - b) for b in source] for a in target]


def test_cycling_passes_gradients_to_every_use() -> None:
    target, source = torch.zeros(5), torch.zeros(2, requires_grad=True)
    t, s = F.pair(target, source)
    (t + s).sum().backward()
    assert source.grad is not None
    assert source.grad.tolist() == [3.0, 2.0]


def test_unknown_pairs_are_refused() -> None:
    with pytest.raises(OptionError, match=r"'all'.*'one_to_one' or 'cartesian'"):
        F.pair(torch.zeros(2), torch.zeros(2), "all")


def test_a_class_that_is_ruled_out_counts_for_nothing() -> None:
    logits = torch.tensor([[1.0, 2.0, -torch.inf]], requires_grad=True)
    found = F.entropy(logits)
    torch.testing.assert_close(found, F.entropy(torch.tensor([[1.0, 2.0]])))
    found.sum().backward()
    assert logits.grad is not None
    assert torch.isfinite(logits.grad).all()
