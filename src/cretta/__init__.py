"""Keeps an image classifier accurate and calibrated while the world drifts away from its training data."""

from cretta import data, functional, methods, metrics, models, streams
from cretta.adapter import Adapter
from cretta.buffer import SourceBuffer
from cretta.errors import BatchError, BusyError, CrettaError, ModelError, OptionError, StateError
from cretta.functional import energy
from cretta.method import Facts, Objective, Options, Record
from cretta.methods import adapt
from cretta.methods.cretta import CreTTA
from cretta.monitor.collapse import CollapseWarning, Guard

__version__ = "0.1.0"

__all__ = [
    "Adapter",
    "BatchError",
    "BusyError",
    "CollapseWarning",
    "CreTTA",
    "CrettaError",
    "Facts",
    "Guard",
    "ModelError",
    "Objective",
    "OptionError",
    "Options",
    "Record",
    "SourceBuffer",
    "StateError",
    "adapt",
    "data",
    "energy",
    "functional",
    "methods",
    "metrics",
    "models",
    "streams",
]
