"""TEA: test-time energy adaptation."""

from __future__ import annotations

import dataclasses

import torch
from torch import Tensor

from cretta.adapter import Adapter
from cretta.errors import BatchError
from cretta.functional import energy
from cretta.method import Facts, Objective, Options
from cretta.options import integer, number


@dataclasses.dataclass(frozen=True, kw_only=True)
class TEAOptions(Options):
    """Options of TEA."""

    sampling_steps: int = integer(20, "SGLD steps per batch", at_least=1)
    step_size: float = number(0.1, "η, the SGLD step size", above=0)
    noise: float = number(0.01, "σ, the standard deviation of SGLD's noise", at_least=0)
    replay: int = integer(10_000, "how many samples are stored to start from", at_least=1)
    renewal: float = number(0.05, "the share of starts drawn from U[-1, 1)", at_least=0, at_most=1)


class TEA(Adapter[TEAOptions]):
    """Test-time energy adaptation (Yuan et al., 2024): L = mean E(x) − mean E(x̃), x̃ sampled from the model by SGLD.

    SGLD: x̃ ← x̃ + η ∇ logsumexp(z(x̃)) + σ N(0, 1), from samples of earlier batches or uniform ones. Samples pass the
    model apart from the batch.
    """

    name = "tea"
    facts = Facts(updates="norm affine", statistics="batch", logits="after", forwards=23, backwards=22)
    presets = {
        "cifar10": {"lr": 1e-3},
        "cifar100": {"lr": 1e-5},
        "tiny-imagenet": {"lr": 1e-4},
        "pacs": {"sampling_steps": 100, "step_size": 0.05},
    }

    def objective(self, x: Tensor) -> Objective:
        """Compute the batch's energy minus that of samples from the model."""
        temperature, samples = self.options.temperature, self._samples(x)
        logits = self.model(x)

        def samples_term() -> Tensor:
            fake = energy(self.model.source(samples), temperature).mean()
            self.note(source_energy=fake)
            return -fake

        return Objective([energy(logits, temperature).mean(), samples_term], logits)

    def _samples(self, x: Tensor) -> Tensor:
        """Run SGLD from stored or new samples, and store the result; a skipped step restores the old ones."""
        o = self.options
        if "samples" not in self.memory:
            self.memory["samples"] = self._uniform(x, o.replay)
        stored = self.memory["samples"]
        if stored.shape[1:] != x.shape[1:]:
            raise BatchError(
                f"expected images of shape {tuple(stored.shape[1:])}, as the stored samples, got {tuple(x.shape[1:])}; "
                "resize the images, or call reset() to start with samples of another size."
            )
        index = torch.randint(len(stored), (len(x),), generator=self.generator, device=x.device)
        renew = torch.rand(len(x), generator=self.generator, device=x.device) < o.renewal
        start = torch.where(renew.view(-1, *[1] * (x.dim() - 1)), self._uniform(x, len(x)), stored[index])
        memory_format = torch.channels_last if x.dim() == 4 and o.channels_last else torch.contiguous_format
        samples = self._sgld(start.contiguous(memory_format=memory_format))
        # Of several samples that started from one entry the last is stored; torch would leave it to chance.
        order = torch.arange(len(index), device=index.device)
        last = torch.zeros(len(stored), dtype=torch.long, device=index.device).scatter_reduce_(0, index, order, "amax")
        old = stored[index]
        stored[index] = samples[last[index]]
        self.on_rollback(lambda: stored.index_copy_(0, index, old))
        return samples

    def _sgld(self, samples: Tensor) -> Tensor:
        o = self.options
        for _ in range(o.sampling_steps):
            samples.requires_grad_(True)
            height = -energy(self.model.source(samples), o.temperature).sum()
            (slope,) = torch.autograd.grad(height, samples)
            # torch.empty_like keeps the memory format, torch.randn does not.
            noise = torch.empty_like(samples).normal_(generator=self.generator)
            samples = samples.detach().add_(slope, alpha=o.step_size).add_(noise, alpha=o.noise)
        return samples

    def _uniform(self, x: Tensor, count: int) -> Tensor:
        drawn = torch.empty((count, *x.shape[1:]), dtype=x.dtype, device=x.device)
        return drawn.uniform_(-1, 1, generator=self.generator)
