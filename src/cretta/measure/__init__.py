"""What happened: accuracy and calibration over a stream."""

from cretta.measure.accuracy import Accuracy, accuracy
from cretta.measure.calibration import Calibration, calibration_error

__all__ = ["Accuracy", "Calibration", "accuracy", "calibration_error"]
