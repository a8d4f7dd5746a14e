"""Energies and the objectives built from them, as pure tensor functions.

Equation numbers are those of "Contrastive Residual Energy Test-time Adaptation". In every objective
``target`` and ``source`` are energies E_θ of the adapting model, ``reference_target`` and
``reference_source`` energies E_φ of the frozen source model; pairs are formed by broadcasting (see
:func:`pair`). Half-precision logits are computed in float32: bfloat16 keeps 8 bits, too few for the
difference of two energies.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from cretta.errors import OptionError


def at_least_float32(x: Tensor) -> Tensor:
    """Return ``x`` in float32 if it has half precision, else as it is."""
    return x.float() if x.dtype in (torch.float16, torch.bfloat16) else x


def energy(logits: Tensor, temperature: float = 1.0) -> Tensor:
    """Return the free energy of a classifier, Eq. 1: E(x) = -T · logsumexp(f(x) / T); (B, C) -> (B,).

    >>> energy(torch.tensor([[0.0, 0.0]]))
    tensor([-0.6931])
    """
    if not temperature > 0:
        raise OptionError(f"temperature={temperature!r}: expected a number above 0; 1.0 is the paper's value.")
    scaled = at_least_float32(logits) / temperature
    return -temperature * torch.logsumexp(scaled, dim=-1)


def entropy(logits: Tensor) -> Tensor:
    """Return the Shannon entropy of softmax(logits) in nats: H = -Σ p log p; (B, C) -> (B,).

    >>> entropy(torch.tensor([[0.0, 0.0]]))
    tensor([0.6931])
    """
    log_p = F.log_softmax(at_least_float32(logits), dim=-1)
    p = log_p.exp()
    # 0 · log 0 is 0, also for a class excluded by a logit of -inf.
    return -(p * log_p.masked_fill(p == 0, 0)).sum(dim=-1)


def entropy_margin(classes: int, margin: float | None = None) -> float:
    """Return the entropy below which a prediction counts as reliable: ``margin``, by default 0.4 · ln C."""
    return 0.4 * math.log(classes) if margin is None else margin


def pair(target: Tensor, source: Tensor, how: str = "one_to_one") -> tuple[Tensor, Tensor]:
    """Shape two vectors so that arithmetic between them runs over the requested pairs.

    ``one_to_one`` pairs by position and cycles through a shorter ``source``; ``cartesian`` makes all
    |B_t| × |B_s| pairs.

    >>> t, s = pair(torch.tensor([1.0, 2.0, 3.0]), torch.tensor([10.0, 20.0]))
    >>> t - s
    tensor([ -9., -18.,  -7.])
    """
    if how == "cartesian":
        return target.unsqueeze(1), source.unsqueeze(0)
    if how != "one_to_one":
        raise OptionError(f"pairs={how!r}: expected 'one_to_one' or 'cartesian'.")
    if len(source) == len(target):
        return target, source
    return target, source.repeat(-(-len(target) // len(source)))[: len(target)]


def residual_logit(
    target: Tensor,
    source: Tensor,
    reference_target: Tensor,
    reference_source: Tensor,
    beta: float = 1.0,
    contrast: float = 1.0,
) -> Tensor:
    """Return the contrastive residual logit, Eq. 3: l = β(E_φ(x_t) - E_φ(x_s)) - β(E_θ(x_t) - E_θ(x_s)).

    With ``contrast`` α the source samples count less: l = β[(E_φ(x_t) - E_θ(x_t)) - α(E_φ(x_s) - E_θ(x_s))]. α = 1 is
    Eq. 3. With α = 0, l grows as the target's energy falls below the source model's, and w = σ(-l) ends the descent.

    >>> residual_logit(torch.tensor(-5.0), torch.tensor(-4.0), torch.tensor(-3.0), torch.tensor(-6.0))
    tensor(4.)
    """
    if contrast != 1:
        return beta * ((reference_target - target) - contrast * (reference_source - source))
    return beta * ((reference_target - reference_source) - (target - source))


def pairwise_logit(target: Tensor, source: Tensor, beta: float = 1.0) -> Tensor:
    """Return the logit without the source model's terms (appendix, non-residual): l = -β(E_θ(x_t) - E_θ(x_s))."""
    return -beta * (target - source)


def contrastive_loss(logit: Tensor) -> Tensor:
    """Return the negative log-likelihood of preferring target over source, Eq. 4: -mean log σ(l)."""
    return F.softplus(-logit).mean()


def gradient_weight(logit: Tensor) -> Tensor:
    """Return the weight of each pair's energy gradients, Eq. 5: w = σ(-l).

    ∇L = mean w · β(∇E_θ(x_t) - ∇E_θ(x_s)), since log p_θ(x) = -E_θ(x) - log Z.
    """
    return torch.sigmoid(-logit)


def weighted_loss(target: Tensor, source: Tensor, weight: Tensor, beta: float = 1.0) -> Tensor:
    """Return a surrogate loss whose gradient is Eq. 5 with ``weight`` instead of w."""
    return (weight * (beta * (target - source))).mean()


def target_loss(target: Tensor) -> Tensor:
    """Return the target's energy, the objective without its contrastive terms: mean E_θ(x_t)."""
    return target.mean()


def nce_loss(
    target: Tensor,
    source: Tensor,
    reference_target: Tensor,
    reference_source: Tensor,
    constant: float | Tensor = 0.0,
) -> Tensor:
    """Return the noise-contrastive loss: -mean log σ(r(x_t)) - mean log(1 - σ(r(x_s))), r = -(E_θ - E_φ) + c.

    The paper's appendix derives the same r twice. Residual: p_θ = q_φ exp(-Ẽ)/Z starts as q_φ itself, so
    c = 0. Non-residual: p_θ and q_φ are normalized separately and c = log Z_φ - log Z_θ is unknown; pass
    :func:`nce_constant` for its maximum-likelihood value.
    """
    on_target = constant - (target - reference_target)
    on_source = constant - (source - reference_source)
    return F.softplus(-on_target).mean() + F.softplus(on_source).mean()


def nce_constant(target: Tensor, source: Tensor, reference_target: Tensor, reference_source: Tensor) -> Tensor:
    """Return the c that minimizes :func:`nce_loss` for these energies, by bisection; without gradient.

    A gradient is not needed: the loss is stationary in c there.
    """
    with torch.no_grad():
        on_target = (reference_target - target).double()
        on_source = (reference_source - source).double()
        differences = torch.cat([on_target.flatten(), on_source.flatten()])
        # The optimum balances mean σ(-(r_t + c)) against mean σ(r_s + c): it lies where -r does, up to the
        # few nats that unequal tails need.
        low, high = -differences.max() - 50.0, -differences.min() + 50.0
        for _ in range(80):
            middle = (low + high) / 2
            slope = torch.sigmoid(on_source + middle).mean() - torch.sigmoid(-(on_target + middle)).mean()
            low, high = torch.where(slope < 0, middle, low), torch.where(slope < 0, high, middle)
        return ((low + high) / 2).to(target.dtype)
