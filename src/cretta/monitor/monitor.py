"""The monitor: follows an adapter's stream and summarizes, without labels, how good its predictions are."""

from __future__ import annotations

import dataclasses
import math
from collections import Counter, deque
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from cretta.functional import energy
from cretta.monitor.drift import DriftTest
from cretta.monitor.estimates import SourceReference
from cretta.options import check_integer

if TYPE_CHECKING:
    from cretta.adapter import Adapter
    from cretta.method import Record


@dataclasses.dataclass(frozen=True)
class MonitorSummary:
    """What is known about a stream, over its last images (``window``) unless stated otherwise."""

    images: int
    """Since the beginning, as are the batches."""
    batches: int
    adapted: int
    """Batches whose update changed the model."""
    skipped: int
    alarms: int
    """Batches in which the guard raised an alarm."""
    window: int
    """Images that the numbers below are computed from."""
    confidence: float
    """Mean confidence, as answered."""
    classes: float
    """Effective number of predicted classes: exp H(p̄)."""
    energy: tuple[float, ...]
    """Mean and the quantiles 5 %, 50 % and 95 % of the energies of the adapted model."""
    agreement: float | None
    """Share of images to which the adapted and the source model give the same class."""
    estimates: dict[str, float]
    """Estimated accuracy of the adapted model, by estimate; empty without a labeled source reference."""
    source_estimates: dict[str, float]
    """The same of the source model with running statistics, on the same images."""
    input_drift: float | None
    """Mean rank of the source model's energies among those of source images: 0.5 without drift."""
    drift_detected_after: int | None
    """Images after which the drift test raised its alarm, since the beginning."""
    adaptation_drift: float | None
    """Mean of E_θ − E_φ, in standard deviations of E_φ: what adaptation changed, on the same images."""
    buffer_accuracy: float | None
    """Accuracy of the adapted model on labeled source images, at the last refresh: a fall is forgetting."""
    source_accuracy: float | None
    """Accuracy of the source model on the same images."""
    temperature: float | None
    """What calibrates the model on labeled source images; below 1, it is underconfident there."""

    @property
    def cause(self) -> str:
        """What changed the energies: ``"input"``, ``"adaptation"``, ``"both"``, or an empty string."""
        moved = self.adaptation_drift is not None and abs(self.adaptation_drift) > 1
        return {(0, 0): "", (1, 0): "input", (0, 1): "adaptation", (1, 1): "both"}[
            self.drift_detected_after is not None, moved
        ]

    def as_dict(self) -> dict[str, Any]:
        """Return all numbers and the cause, for JSON."""
        return dataclasses.asdict(self) | {"cause": self.cause}


class Monitor:
    """Follows the records of one adapter; ``summary()`` says how its stream goes.

    ``Monitor(adapter)`` registers itself by ``adapter.on_step``. With a labeled buffer it computes the source model's
    logits on up to ``samples`` images of it at the first batch, and those of the adapted model every ``refresh``
    batches (0: never); without one, pass ``source``, a :class:`SourceReference`, or do without estimates and drift.

    Without an adapter, pass records, or logits and the source model's logits, to :meth:`update`.
    """

    def __init__(
        self,
        adapter: Adapter[Any] | None = None,
        *,
        source: SourceReference | None = None,
        window: int = 1000,
        samples: int = 500,
        refresh: int = 0,
        alpha: float = 0.01,
    ) -> None:
        self.window = check_integer("window", window, at_least=1)
        self.samples = check_integer("samples", samples, at_least=1)
        self.refresh = check_integer("refresh", refresh, at_least=0)
        self.alpha = alpha
        self.source = source
        """Reference of the source model φ."""
        self.adapted: SourceReference | None = None
        """Reference of the adapted model θ, from the last refresh; the source's is used until then."""
        self.counts: Counter[str] = Counter()
        self._drift: DriftTest | None = None
        self._recent: deque[tuple[Tensor, Tensor | None, Tensor | None]] = deque()
        self._adapter = adapter
        if adapter is not None:
            adapter.on_step(self.update)

    def update(self, record: Record | Tensor, source_logits: Tensor | None = None) -> None:
        """Add a batch: a record of the adapter, or logits (N, C) and, if known, the source model's for all of them."""
        if isinstance(record, Tensor):
            self.counts["images"] += len(record)
            self.counts["batches"] += 1
            self._append(record, source_logits, None)
            return
        events = {"images": record.size, "batches": 1, "skipped": record.skipped, "alarms": bool(record.guard)}
        self.counts.update({**events, "adapted": record.adapted})
        if self._adapter is not None:
            self._read_buffer(self._adapter)
        if record.logits is not None:
            self._append(record.logits, record.source_logits, record.compared)

    def _append(self, logits: Tensor, source_logits: Tensor | None, compared: Tensor | None) -> None:
        self._recent.append((logits.detach(), source_logits, compared))
        while sum(len(batch) for batch, *_ in self._recent) - len(self._recent[0][0]) >= self.window:
            self._recent.popleft()
        if self.source is not None and source_logits is not None:
            if self._drift is None:
                self._drift = DriftTest(self.source.energies, self.alpha)
            self._drift.update(energy(source_logits))

    def _read_buffer(self, adapter: Adapter[Any]) -> None:
        if self.source is None and self.counts["batches"] == 1:
            labeled = adapter.source_samples(self.samples, adapted=False)
            self.source = SourceReference.of(*labeled) if labeled is not None else None
        if self.source is not None and self.refresh and self.counts["batches"] % self.refresh == 0:
            labeled = adapter.source_samples(self.samples)
            self.adapted = SourceReference.of(*labeled) if labeled is not None else None

    def summary(self) -> MonitorSummary:
        """Return the numbers of the stream so far."""
        logits = torch.cat([batch for batch, *_ in self._recent]).cpu() if self._recent else torch.empty(0, 2)
        pairs = [(b if c is None else b[c.to(b.device)], s) for b, s, c in self._recent if s is not None]
        reference, drift = self.adapted or self.source, self._drift
        answered = logits.softmax(-1)
        mix = answered.mean(0)
        agreement = adaptation = input_drift = None
        source_estimates: dict[str, float] = {}
        if pairs:
            own, frozen = (torch.cat(part).cpu() for part in zip(*pairs, strict=True))
            agreement = float((own.argmax(-1) == frozen.argmax(-1)).double().mean())
            own_energy, frozen_energy = energy(own), energy(frozen)
            if len(own) > 1:
                adaptation = float((own_energy - frozen_energy).mean() / frozen_energy.std().clamp(min=1e-6))
            source_estimates = self.source.estimates(frozen) if self.source is not None else {}
            input_drift = float(drift.ranks(frozen_energy).mean()) if drift is not None else None
        counted = len(logits) > 0
        return MonitorSummary(
            images=self.counts["images"],
            batches=self.counts["batches"],
            adapted=self.counts["adapted"],
            skipped=self.counts["skipped"],
            alarms=self.counts["alarms"],
            window=len(logits),
            confidence=float(answered.amax(-1).mean()) if counted else math.nan,
            classes=math.exp(float(torch.special.entr(mix).sum())) if counted else math.nan,
            energy=_spread(energy(logits)) if counted else (math.nan,) * 4,
            agreement=agreement,
            estimates=reference.estimates(logits) if reference is not None and counted else {},
            source_estimates=source_estimates,
            input_drift=input_drift,
            drift_detected_after=drift.detected_after if drift is not None else None,
            adaptation_drift=adaptation,
            buffer_accuracy=self.adapted.accuracy if self.adapted is not None else None,
            source_accuracy=self.source.accuracy if self.source is not None else None,
            temperature=reference.temperature if reference is not None else None,
        )


def _spread(energies: Tensor) -> tuple[float, ...]:
    quantiles = torch.tensor([0.05, 0.5, 0.95], dtype=energies.dtype)
    return (float(energies.mean()), *energies.quantile(quantiles).tolist())
