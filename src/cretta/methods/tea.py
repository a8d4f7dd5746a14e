"""TEA: test-time energy adaptation."""

from __future__ import annotations

import dataclasses

import torch
from torch import Tensor

from cretta.adapter import Adapter
from cretta.errors import BatchError, OptionError
from cretta.functional import energy
from cretta.method import Facts, Objective, Options
from cretta.options import flag, integer, number


@dataclasses.dataclass(frozen=True, kw_only=True)
class TEAOptions(Options):
    """What TEA can be told besides what every method can."""

    sampling_steps: int = integer(20, "SGLD steps for each batch", at_least=1)
    step_size: float = number(0.1, "SGLD step size", above=0)
    noise: float = number(0.01, "standard deviation of SGLD's noise", at_least=0)
    replay: int = integer(10_000, "how many samples are kept to start from", at_least=1)
    renewal: float = number(0.05, "the share of starts drawn anew", at_least=0, at_most=1)
    low: float = number(-1.0, "fresh samples are uniform from here")
    high: float = number(1.0, "fresh samples are uniform to here")
    clip: bool = flag(False, "keep samples within [0, 1], the range of images")
    conditional: bool = flag(False, "draw a class for each sample and climb its logit")

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.low < self.high:
            raise OptionError(f"low={self.low:g} and high={self.high:g}: low must be below high.")


class TEA(Adapter[TEAOptions]):
    """Test-time energy adaptation (Yuan et al., 2024): L = mean E(x) - mean E(x̃), x̃ sampled from the model by SGLD.

    SGLD: x̃ ← x̃ + 0.1 · ∇ logsumexp(z(x̃)) + 0.01 · N(0, 1), 20 times, from a replay buffer; with
    ``conditional`` it climbs the logit of a class drawn for each sample. Samples pass apart from the batch.
    """

    name = "tea"
    facts = Facts(
        updates="norm affine",
        statistics="batch",
        source_data=False,
        logits="after",
        loss="E(x) − E(x̃), x̃ by 20 SGLD steps",
        forwards=23,
        backwards=22,
    )
    presets = {
        "cifar10": {"lr": 1e-3},
        "cifar100": {"lr": 1e-5},
        "tiny-imagenet": {"lr": 1e-4},
        "pacs": {"sampling_steps": 100, "step_size": 0.05},
    }
    option_type = TEAOptions

    def objective(self, x: Tensor) -> Objective:
        """The batch's energy against that of the model's own samples."""
        index, samples = self._samples(x)
        logits = self.model(x)
        real = energy(logits, self.options.temperature)
        self._drawn = (index, samples)
        objective = Objective(real.mean(), logits)

        def rest() -> Tensor:
            fake = energy(self.model(samples, role="source"), self.options.temperature).mean()
            objective.notes["source_energy"] = fake.detach()
            objective.loss = real.detach().mean() - fake.detach()
            return -fake

        objective.rest = rest
        return objective

    def update(self, x: Tensor, objective: Objective) -> str:
        """One descent; only then are the samples kept to start from again."""
        reason = super().update(x, objective)
        index, samples = self._drawn
        if not reason:
            kept = self.memory["samples"]
            order = torch.arange(len(index), device=index.device)
            last = torch.zeros(len(kept), dtype=torch.long, device=index.device)
            # Of several samples that started from one entry the last is kept; torch would leave it to chance.
            samples = samples[last.scatter_reduce_(0, index, order, "amax")[index]]
            old = kept[index]
            kept[index] = samples
            self.wrote(lambda: kept.index_copy_(0, index, old))
        del self._drawn
        return reason

    def _samples(self, x: Tensor) -> tuple[Tensor, Tensor]:
        o, shape = self.options, x.shape
        if "samples" not in self.memory:
            self.memory["samples"] = self._uniform(x, o.replay)
        kept = self.memory["samples"]
        if kept.shape[1:] != x.shape[1:]:
            raise BatchError(
                f"the samples kept have shape {tuple(kept.shape[1:])}, the batch {tuple(x.shape[1:])}; resize the "
                "images, or call reset() to start with samples of another size."
            )
        index = torch.randint(len(kept), (len(x),), generator=self.generator, device=x.device)
        renew = torch.rand(len(x), generator=self.generator, device=x.device) < o.renewal
        start = torch.where(renew.view(-1, *[1] * (x.dim() - 1)), self._uniform(x, len(x)), kept[index])
        memory_format = torch.channels_last if x.dim() == 4 and o.channels_last else torch.contiguous_format
        samples = start.contiguous(memory_format=memory_format)
        classes: Tensor | None = None
        for _ in range(o.sampling_steps):
            samples.requires_grad_(True)
            logits = self.model(samples, role="source")
            if o.conditional and classes is None:
                classes = torch.randint(logits.shape[1], (shape[0], 1), generator=self.generator, device=x.device)
            height = -energy(logits, o.temperature) if classes is None else logits.gather(1, classes)
            (slope,) = torch.autograd.grad(height.sum(), samples)
            # torch.empty_like keeps the layout that torch.randn would not
            noise = torch.empty_like(samples).normal_(generator=self.generator)
            samples = samples.detach().add_(slope, alpha=o.step_size).add_(noise, alpha=o.noise)
            if o.clip:
                samples = samples.clamp_(0, 1)
        return index, samples

    def _uniform(self, x: Tensor, count: int) -> Tensor:
        drawn = torch.empty((count, *x.shape[1:]), dtype=x.dtype, device=x.device)
        return drawn.uniform_(self.options.low, self.options.high, generator=self.generator)
