"""What happened: accuracy and calibration over a stream, and what it cost."""

from cretta.metrics.accuracy import Accuracy, accuracy
from cretta.metrics.calibration import Bins, Calibration, calibration_bins, calibration_error
from cretta.metrics.corruption import mean_corruption_error
from cretta.metrics.cost import Cost, count_operations, flops, measure_cost, paper_flops, peak_memory
from cretta.metrics.scores import BrierScore, NegativeLogLikelihood, brier_score, negative_log_likelihood

__all__ = [
    "Accuracy",
    "Bins",
    "BrierScore",
    "Calibration",
    "Cost",
    "NegativeLogLikelihood",
    "accuracy",
    "brier_score",
    "calibration_bins",
    "calibration_error",
    "count_operations",
    "flops",
    "mean_corruption_error",
    "measure_cost",
    "negative_log_likelihood",
    "paper_flops",
    "peak_memory",
]
