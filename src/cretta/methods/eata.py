"""ETA and EATA: entropy of reliable, non-redundant samples; EATA holds on to what mattered to the source."""

from __future__ import annotations

import dataclasses
import math

import torch
import torch.nn.functional as F
from torch import Tensor

from cretta.adapter import Adapter
from cretta.buffer import SourceBuffer
from cretta.errors import OptionError
from cretta.functional import entropy
from cretta.method import Facts, Objective, Options
from cretta.options import integer, number

PAPER_MARGIN = 0.4 * math.log(1000)
"""The official code's margin whatever the number of classes."""
PAPER = {"entropy_margin": PAPER_MARGIN, "redundancy_margin": 0.05}


@dataclasses.dataclass(frozen=True, kw_only=True)
class ETAOptions(Options):
    """What ETA can be told besides what every method can."""

    entropy_margin: float | None = number(None, "e: reliable is H < e; None is 0.4 · ln C", above=0)
    redundancy_margin: float | None = number(
        None, "d: new is |cos(p, p̄)| < d; None is 0.4 to 10 classes, 0.1 to 100, 0.05 above", above=0
    )
    decay: float = number(0.9, "how much of the mean prediction p̄ is kept", at_least=0, below=1)


class ETA(Adapter[ETAOptions]):
    """Efficient test-time adaptation (Niu et al., 2022): L = mean exp(e - H) · H over reliable, non-redundant samples.

    Reliable: H < e. Non-redundant: |cos(p, p̄)| < d, p̄ a moving average of the kept predictions; the first batch has
    none and passes. Nothing kept, no step.
    """

    name = "eta"
    facts = Facts(
        updates="norm affine",
        statistics="batch",
        source_data=False,
        logits="before",
        loss="exp(e − H) · H where H < e and |cos(p, p̄)| < d",
        forwards=1,
        backwards=1,
    )
    presets = {
        "paper": PAPER,
        "tuned": {"entropy_margin": None, "redundancy_margin": None},
        "cifar100": {"lr": 1e-4},
        "tiny-imagenet": {"lr": 1e-4},
        "imagenet": {"lr": 2.5e-4, "optimizer": "sgd", "momentum": 0.9},
    }
    option_type = ETAOptions

    def objective(self, x: Tensor) -> Objective:
        """The weighted entropy of the samples kept."""
        logits = self.model(x)
        uncertainty = entropy(logits)
        margin, redundancy = self._margins(logits.shape[1])
        keep = uncertainty.detach() < margin
        probabilities = logits.detach().softmax(-1)
        average = self.memory.get("average")
        if average is not None:
            keep &= F.cosine_similarity(probabilities, average.unsqueeze(0), dim=-1).abs() < redundancy
        if not bool(keep.any()):
            return Objective(None, logits, reason="no sample is both reliable and new")
        mean = probabilities[keep].mean(0)
        decay = self.options.decay
        self.memory["average"] = mean if average is None else decay * average + (1 - decay) * mean
        kept = uncertainty[keep]
        loss = ((margin - kept.detach()).exp() * kept).mean()
        return Objective(loss + self.penalty(), logits, notes={"kept": keep.sum()})

    def penalty(self) -> Tensor | float:
        """What keeps the parameters where they were; nothing, for ETA."""
        return 0.0

    def _margins(self, classes: int) -> tuple[float, float]:
        o = self.options
        by_count = 0.4 if classes <= 10 else 0.1 if classes <= 100 else 0.05
        margin = 0.4 * math.log(classes) if o.entropy_margin is None else o.entropy_margin
        return margin, by_count if o.redundancy_margin is None else o.redundancy_margin


@dataclasses.dataclass(frozen=True, kw_only=True)
class EATAOptions(ETAOptions):
    """ETA's, and EATA's own."""

    fisher_weight: float = number(2000.0, "α, the weight of the penalty", at_least=0)
    fisher_samples: int = integer(2000, "source samples for F, at most the buffer's", at_least=1)
    fisher_batch: int = integer(64, "source samples a batch for F", at_least=1)


class EATA(ETA):
    """ETA with anti-forgetting: L + α Σ F (θ - θ0)².

    F is the mean over source batches of the squared gradient of the cross-entropy to the model's own labels: the
    diagonal of the Fisher information, from a buffer's samples.
    """

    name = "eata"
    facts = dataclasses.replace(ETA.facts, source_data=True, loss=f"{ETA.facts.loss}, + α Σ F (θ − θ₀)²")
    presets = {
        **ETA.presets,
        "tuned": {**ETA.presets["tuned"], "fisher_weight": 1.0},
    }
    option_type = EATAOptions
    options: EATAOptions

    def begin(self) -> None:
        """Checks that there are source samples; F waits for the first batch."""
        if not isinstance(self.buffer, SourceBuffer):
            raise OptionError(
                f"eata takes its Fisher information from source samples; buffer is {type(self.buffer).__name__}. Pass "
                "buffer=cretta.SourceBuffer.sample(training_set, size=2000), or use 'eta'."
            )
        self._fisher: list[Tensor] | None = None

    def objective(self, x: Tensor) -> Objective:
        """ETA's, with the penalty."""
        if self._fisher is None:
            self._fisher = self._information(x)
        return super().objective(x)

    def penalty(self) -> Tensor | float:
        """α Σ F (θ - θ0)²."""
        assert self._fisher is not None
        moved = zip(self._fisher, self.parameters.joined(), self.source_parameters, strict=True)
        return self.options.fisher_weight * sum((f * (now - origin).square()).sum() for f, now, origin in moved)

    def _information(self, x: Tensor) -> list[Tensor]:
        """F at the source parameters, wherever the parameters are now."""
        assert isinstance(self.buffer, SourceBuffer)
        plain = self.buffer.with_augment("none")
        count = min(self.options.fisher_samples, len(plain))
        starts = list(range(0, count, self.options.fisher_batch))
        if len(starts) > 1 and count - starts[-1] == 1:
            starts.pop()  # a single sample has no statistics of its own
        with self.parameters.at(self.source_parameters):
            squares = [torch.zeros_like(flat) for flat in self.parameters.flat]
            for start in starts:
                images = plain.batch(start, min(self.options.fisher_batch, count - start), like=x)
                logits = self.model(images, role="source")
                self.backward(F.cross_entropy(logits, logits.detach().argmax(-1)))
                for square, gradient in zip(squares, self.parameters.gradients(), strict=True):
                    square.addcmul_(gradient, gradient)
        return [square / len(starts) for square in squares]
