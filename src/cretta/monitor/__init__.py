"""Monitoring of an adapted model without labels."""

from cretta.monitor.collapse import CollapseMonitor, CollapseWarning, Guard

__all__ = ["CollapseMonitor", "CollapseWarning", "Guard"]
