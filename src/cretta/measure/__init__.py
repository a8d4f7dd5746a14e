"""What happened: accuracy, calibration and energies over a stream."""

from cretta.measure.accuracy import Accuracy, accuracy
from cretta.measure.calibration import Calibration, calibration_error
from cretta.measure.trace import Trace

__all__ = ["Accuracy", "Calibration", "Trace", "accuracy", "calibration_error"]
