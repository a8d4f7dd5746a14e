"""What a stream's predictions are worth (accuracy, calibration, proper scores), and what a step costs."""

from cretta.metrics.calibration import Bins, calibration_error
from cretta.metrics.corruption import mean_corruption_error
from cretta.metrics.memory import PeakMeter, peak_meter
from cretta.metrics.operations import Operations, count_operations
from cretta.metrics.scores import BatchScores

__all__ = [
    "BatchScores",
    "Bins",
    "Operations",
    "PeakMeter",
    "calibration_error",
    "count_operations",
    "mean_corruption_error",
    "peak_meter",
]
