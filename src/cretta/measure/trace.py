"""What a stream did, batch by batch."""

from __future__ import annotations

from torch import Tensor

from cretta.functional import energy
from cretta.measure.accuracy import Accuracy
from cretta.measure.calibration import Calibration


class Trace:
    """Running measures after each batch of a labelled stream."""

    def __init__(self, bins: int = 10) -> None:
        self._accuracy = Accuracy()
        self._calibration = Calibration(bins)
        self.sizes: list[int] = []
        self.seconds: list[float] = []
        """What each batch took."""
        self.accuracy: list[float] = []
        """Of all images so far."""
        self.calibration_error: list[float] = []
        """Of all images so far."""
        self.energy: list[float] = []
        """Mean of each batch."""

    def update(self, logits: Tensor, labels: Tensor, seconds: float) -> None:
        """Counts a batch in."""
        self._accuracy.update(logits, labels)
        self._calibration.update(logits.softmax(-1), labels)
        self.sizes.append(len(labels))
        self.seconds.append(seconds)
        self.accuracy.append(self._accuracy.value)
        self.calibration_error.append(self._calibration.value)
        self.energy.append(float(energy(logits).mean()))

    @property
    def images(self) -> int:
        """How many images there were."""
        return sum(self.sizes)

    @property
    def mean_energy(self) -> float:
        """Mean energy of all images."""
        return sum(e * n for e, n in zip(self.energy, self.sizes, strict=True)) / self.images

    @property
    def images_per_second(self) -> float:
        """How many images were predicted and adapted to in a second."""
        return self.images / sum(self.seconds)
