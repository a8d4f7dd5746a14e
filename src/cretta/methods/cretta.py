"""CreTTA: contrastive residual energy test-time adaptation."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable

import torch
from torch import Tensor

from cretta import functional
from cretta.adapter import Adapter
from cretta.augment import AUGMENTATIONS
from cretta.errors import OptionError
from cretta.functional import energy
from cretta.method import Facts, Objective, Options
from cretta.options import choice, flag, number
from cretta.reference import ReferenceEnergies


@dataclasses.dataclass(frozen=True, kw_only=True)
class CreTTAOptions(Options):
    """Options of CreTTA."""

    beta: float = number(1.0, "β, the weight of energy differences", above=0)
    reference: str = choice(
        "running",
        "BatchNorm statistics of the source model φ: of training, or as the adapting model's",
        among=("running", "batch"),
    )
    contrast: float = number(
        1.0, "α, the weight of the source samples in Eq. 3; with 0 the method needs no buffer", at_least=0, at_most=1
    )
    pairs: str = choice("one_to_one", "which target and source samples are compared", among=("one_to_one", "cartesian"))
    objective: str = choice(
        "residual",
        "Eq. 4, the same without the source model's terms, without the source samples, or NCE",
        among=("residual", "pairwise", "target", "nce_residual", "nce"),
    )
    weighting: str = choice(
        "adaptive", "the gradient weight: w of Eq. 5, or drawn from U[0, 1)", among=("adaptive", "uniform")
    )
    source: str = choice(
        "buffer",
        "where source samples come from: the buffer, or the half of the target batch with least energy",
        among=("buffer", "target"),
    )
    source_fraction: float = number(
        1.0, "source samples per batch, as a share of its size; pairs are made by cycling", above=0, at_most=1
    )
    lean: bool = flag(False, "one graph at a time: half the memory for one more forward of the source samples")
    augment: str | None = choice(None, "augmentation of the buffer; None leaves the buffer's", among=AUGMENTATIONS)


class CreTTA(Adapter[CreTTAOptions]):
    """Contrastive residual energy test-time adaptation (Han et al., 2026).

    L = −mean log σ(β[(E_φ(x_t) − E_φ(x_s)) − (E_θ(x_t) − E_θ(x_s))]).

    These are Eqs. 3 and 4. Target samples x_t gain likelihood relative to source samples x_s of a small buffer and to
    the frozen source model φ. Target and source pass θ separately, each with its own statistics; logits are from after
    the update.
    """

    name = "cretta"
    facts = Facts(
        updates="norm affine", statistics="batch", logits="after", source_data="required", forwards=4, backwards=2
    )
    presets = {
        "cifar10": {"lr": 1e-3, "beta": 1.0, "augment": "rotate"},
        "cifar100": {"lr": 2e-3, "beta": 2.0, "augment": "cifar100"},
        "tiny-imagenet": {"lr": 1e-3, "beta": 2.0, "augment": "none"},
        "imagenet": {"lr": 2.5e-4, "beta": 1.0, "augment": "none"},
        "pacs": {"lr": 1e-3, "beta": 1.0, "augment": "cifar100"},
        "fast": {"source_fraction": 0.2, "predict": "before"},
    }
    without_buffer = (
        ", or use source='target', which takes the least-energy half of each batch instead, or contrast=0, "
        "which uses no source samples"
    )

    @property
    def reads_buffer(self) -> bool:
        """Whether source samples come from the buffer."""
        return self.options.source == "buffer" and self.options.objective != "target" and self.options.contrast > 0

    def begin(self) -> None:
        """Check that options fit together, and start at the buffer's first sample."""
        o = self.options
        if o.weighting == "uniform" and o.objective not in ("residual", "pairwise"):
            raise OptionError(
                f"weighting='uniform' replaces w of a contrastive objective; objective={o.objective!r} has none. "
                "Use objective='residual' or 'pairwise'."
            )
        if o.contrast != 1 and (o.objective != "residual" or o.weighting == "uniform"):
            raise OptionError(
                f"contrast={o.contrast} is the weight of the source samples in Eq. 3; objective={o.objective!r} with "
                f"weighting={o.weighting!r} does not have it. Use objective='residual' with weighting='adaptive'."
            )
        # Uniform weights do not use the frozen model.
        self._residual = o.objective in ("residual", "nce", "nce_residual") and o.weighting == "adaptive"
        self._reference_statistics = "running" if o.reference == "running" else self.statistics
        if self._residual:
            self.frozen(self._reference_statistics)
        if self.buffer is None or not self.reads_buffer:
            if o.lean or o.source_fraction != 1:
                raise OptionError(
                    f"lean={o.lean} and source_fraction={o.source_fraction} set how samples of the buffer are read; "
                    f"source={o.source!r} with objective={o.objective!r} reads none. Leave them out."
                )
            return
        if o.augment is not None:
            self.buffer = self.buffer.with_augment(o.augment)
        self._reference_source = ReferenceEnergies(
            self.buffer,
            self._source_reference,
            per_sample=self._reference_statistics == "running",
        )
        self.memory["cursor"] = torch.tensor(0)

    def objective(self, x: Tensor) -> Objective:
        """Compute Eq. 4, or the variant requested, on the batch and as many source samples."""
        o = self.options
        # What needs no graph is computed first, before any graph takes memory.
        reference_target = self._target_reference(x) if self._residual else None
        early = self.reads_buffer and (self._residual or o.lean)
        images, reference_source = self._from_buffer(x) if early else (None, None)
        source, later = self._deferred(images) if images is not None and o.lean else (None, None)
        logits = self.model(x)
        target = energy(logits, o.temperature)
        if o.objective == "target":
            return Objective(functional.target_loss(target), logits)
        if o.contrast == 0:
            source = reference_source = torch.zeros_like(target)  # multiplied by 0 in the logit
        elif not self.reads_buffer:
            low = target.detach().topk(max(1, len(x) // 2), largest=False).indices.sort().values
            source = target[low]
            reference_source = reference_target[low] if reference_target is not None else None
        elif source is None:
            source = self._source_energy(images if images is not None else self._from_buffer(x)[0])
        assert source is not None
        loss, weight = self._loss(target, source, reference_target, reference_source)
        if o.contrast:
            self.note(source_energy=source.mean())
        if weight is not None:
            self.note(weight=weight.mean())
        return Objective(loss if later is None else [loss, later], logits)

    def _source_energy(self, images: Tensor) -> Tensor:
        return energy(self.model.source(images), self.options.temperature)

    def _deferred(self, images: Tensor) -> tuple[Tensor, Callable[[], Tensor]]:
        """Return E_θ(x_s) without a graph, and a term of the loss for when the target's graph is freed.

        The weight of each source sample's gradient (Eq. 5) is known after the target's backward pass. The term adds
        that gradient, and zero to the value of the loss.
        """
        with torch.no_grad():
            values = self._source_energy(images)
        values.requires_grad_(True)

        def later() -> Tensor:
            assert values.grad is not None
            term = (values.grad * self._source_energy(images)).sum()
            return term - term.detach()

        return values, later

    def _loss(
        self, target: Tensor, source: Tensor, reference_target: Tensor | None, reference_source: Tensor | None
    ) -> tuple[Tensor, Tensor | None]:
        o = self.options
        if o.objective in ("nce", "nce_residual"):
            assert reference_target is not None
            assert reference_source is not None
            energies = (target, source, reference_target, reference_source)
            constant = functional.nce_constant(*energies) if o.objective == "nce" else 0.0
            return functional.nce_loss(*energies, constant=constant), None
        paired_target, paired_source = functional.pair(target, source, o.pairs)
        if reference_target is None or reference_source is None:
            logit = functional.pairwise_logit(paired_target, paired_source, o.beta)
        else:
            paired_reference = functional.pair(reference_target, reference_source, o.pairs)
            logit = functional.residual_logit(paired_target, paired_source, *paired_reference, o.beta, o.contrast)
        if o.weighting == "uniform":
            weight = torch.rand(logit.shape, generator=self.generator, device=logit.device, dtype=logit.dtype)
            return functional.weighted_loss(paired_target, paired_source, weight, o.beta), weight
        return functional.contrastive_loss(logit), functional.gradient_weight(logit.detach())

    @property
    def compares_all(self) -> bool:
        """Whether E_φ(x_t) has the statistics of training, as the logits that the base compares with."""
        return self._residual and self._reference_statistics == "running"

    def _source_reference(self, images: Tensor) -> Tensor:
        """Return E_φ(x_s)."""
        with torch.no_grad():
            return energy(self.frozen(self._reference_statistics).source(images), self.options.temperature)

    def _target_reference(self, x: Tensor) -> Tensor:
        """Return E_φ(x_t)."""
        if self.compares_all:
            return energy(self.comparison.logits(x)[1], self.options.temperature)
        with torch.no_grad():
            return energy(self.frozen(self._reference_statistics)(x), self.options.temperature)

    def _from_buffer(self, x: Tensor) -> tuple[Tensor, Tensor | None]:
        """Return the next source samples, as many as ``x`` has or a share of that, and their E_φ if it is used."""
        assert self.buffer is not None
        start = int(self.memory["cursor"])
        count = math.ceil(len(x) * self.options.source_fraction)
        self.memory["cursor"] = torch.tensor((start + count) % len(self.buffer))
        images = self.buffer.batch(start, count, like=x)
        return images, self._reference_source(images, start) if self._residual else None
