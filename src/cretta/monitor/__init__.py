"""Monitoring of an adapted model without labels: estimates of accuracy, drift, calibration, guard, callbacks."""

from cretta.monitor import callbacks
from cretta.monitor.calibration import fit_temperature
from cretta.monitor.drift import DriftTest
from cretta.monitor.estimates import ESTIMATES, SourceReference, cot, estimate_accuracy
from cretta.monitor.guard import CollapseWarning, Guard, GuardState
from cretta.monitor.monitor import Monitor, MonitorSummary

__all__ = [
    "ESTIMATES",
    "CollapseWarning",
    "DriftTest",
    "Guard",
    "GuardState",
    "Monitor",
    "MonitorSummary",
    "SourceReference",
    "callbacks",
    "cot",
    "estimate_accuracy",
    "fit_temperature",
]
