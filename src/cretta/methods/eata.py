"""ETA and EATA: entropy of reliable, non-redundant samples; EATA also preserves what matters to the source."""

from __future__ import annotations

import dataclasses

import torch
import torch.nn.functional as F
from torch import Tensor
from typing_extensions import TypeVar

from cretta.adapter import Adapter
from cretta.errors import SkipStep
from cretta.functional import entropy, entropy_margin
from cretta.method import Facts, Objective, Options
from cretta.options import integer, number


@dataclasses.dataclass(frozen=True, kw_only=True)
class ETAOptions(Options):
    """Options of ETA."""

    entropy_margin: float | None = number(None, "e: reliable is H < e; None is 0.4 · ln C", above=0)
    redundancy_margin: float | None = number(
        None, "d: new is |cos(p, p̄)| < d; None is 0.4 to 10 classes, 0.1 to 100, 0.05 above", above=0
    )
    decay: float = number(0.9, "weight of the past in the mean prediction p̄", at_least=0, below=1)


ETAOptionsT = TypeVar("ETAOptionsT", bound=ETAOptions, default=ETAOptions)


class ETA(Adapter[ETAOptionsT]):
    """Efficient test-time adaptation (Niu et al., 2022): L = mean exp(e − H) · H where H < e and |cos(p, p̄)| < d.

    Reliable: H < e. Non-redundant: |cos(p, p̄)| < d, p̄ a moving average of the selected predictions; the first batch
    has none and passes. Without a selected sample the step is skipped.
    """

    name = "eta"
    facts = Facts(updates="norm affine", statistics="batch", logits="before")
    presets = {
        "paper": {"entropy_margin": entropy_margin(1000), "redundancy_margin": 0.05},
        "tuned": {"entropy_margin": None, "redundancy_margin": None},
        "cifar100": {"lr": 1e-4},
        "tiny-imagenet": {"lr": 1e-4},
        "imagenet": {"lr": 2.5e-4, "optimizer": "sgd", "momentum": 0.9},
    }

    def objective(self, x: Tensor) -> Objective:
        """Compute the weighted entropy of the selected samples."""
        o, logits = self.options, self.model(x)
        classes = logits.shape[1]
        margin = entropy_margin(classes, o.entropy_margin)
        by_classes = 0.4 if classes <= 10 else 0.1 if classes <= 100 else 0.05
        redundancy = by_classes if o.redundancy_margin is None else o.redundancy_margin
        entropies, probabilities = entropy(logits), logits.detach().softmax(-1)
        selected = entropies.detach() < margin
        average = self.memory.get("average")
        if average is not None:
            selected &= F.cosine_similarity(probabilities, average.unsqueeze(0), dim=-1).abs() < redundancy
        if not bool(selected.any()):
            raise SkipStep("no sample is both reliable and new", logits)
        mean = probabilities[selected].mean(0)
        self.memory["average"] = mean if average is None else o.decay * average + (1 - o.decay) * mean
        self.note(selected=selected.sum())
        reliable = entropies[selected]
        return Objective(((margin - reliable.detach()).exp() * reliable).mean() + self.penalty(), logits)

    def penalty(self) -> Tensor | float:
        """Return what keeps the parameters near the source model; nothing, for ETA."""
        return 0.0


@dataclasses.dataclass(frozen=True, kw_only=True)
class EATAOptions(ETAOptions):
    """Options of EATA: those of ETA, and of its penalty."""

    fisher_weight: float = number(2000.0, "α, the weight of the penalty", at_least=0)
    fisher_samples: int = integer(2000, "source samples for F, at most the buffer's", at_least=1)
    fisher_batch: int = integer(64, "source samples per batch for F", at_least=1)


class EATA(ETA[EATAOptions]):
    """ETA with a penalty on forgetting: L = mean exp(e − H) · H where H < e and |cos(p, p̄)| < d, + α Σ F (θ − θ₀)².

    F is the mean over source batches of the squared gradient of the cross-entropy to the model's own labels: the
    diagonal of the Fisher information, from a buffer's samples.
    """

    name = "eata"
    facts = dataclasses.replace(ETA.facts, source_data="required")
    presets = {**ETA.presets, "tuned": {**ETA.presets["tuned"], "fisher_weight": 1.0}}
    without_buffer = ", or use 'eta'"

    def begin(self) -> None:
        """Leave F to the first batch, whose device and dtype it takes."""
        self._fisher: list[Tensor] | None = None

    def objective(self, x: Tensor) -> Objective:
        """Compute ETA's objective with the penalty."""
        if self._fisher is None:
            self._fisher = self._fisher_information(x)
        return super().objective(x)

    def penalty(self) -> Tensor | float:
        """Return α Σ F (θ − θ₀)²."""
        assert self._fisher is not None
        terms = zip(self._fisher, self.learnable.joined(), self.source_parameters, strict=True)
        return self.options.fisher_weight * sum((f * (now - origin).square()).sum() for f, now, origin in terms)

    def _fisher_information(self, x: Tensor) -> list[Tensor]:
        """Return F at the source parameters, wherever the parameters are now."""
        assert self.buffer is not None
        plain = self.buffer.with_augment("none")
        count = min(self.options.fisher_samples, len(plain))
        starts = list(range(0, count, self.options.fisher_batch))
        if len(starts) > 1 and count - starts[-1] == 1:
            starts.pop()  # a single sample has no batch statistics
        with self.learnable.at(self.source_parameters):
            squares = [torch.zeros_like(flat) for flat in self.learnable.flat]
            for start in starts:
                images = plain.batch(start, min(self.options.fisher_batch, count - start), like=x)
                logits = self.model.source(images)
                self.backward(F.cross_entropy(logits, logits.detach().argmax(-1)))
                for square, gradient in zip(squares, self.learnable.gradients(), strict=True):
                    square.addcmul_(gradient, gradient)
        return [square / len(starts) for square in squares]
