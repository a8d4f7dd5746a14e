"""Monitoring of an adapted model without labels: estimates of accuracy, drift, calibration, guard, callbacks."""

from cretta.monitor import callbacks
from cretta.monitor.calibration import fit_temperature
from cretta.monitor.collapse import CollapseMonitor, CollapseWarning, Guard
from cretta.monitor.drift import DriftTest
from cretta.monitor.estimates import ESTIMATES, SourceReference, cot, estimate_accuracy
from cretta.monitor.monitor import Monitor, MonitorSummary

__all__ = [
    "ESTIMATES",
    "CollapseMonitor",
    "CollapseWarning",
    "DriftTest",
    "Guard",
    "Monitor",
    "MonitorSummary",
    "SourceReference",
    "callbacks",
    "cot",
    "estimate_accuracy",
    "fit_temperature",
]
