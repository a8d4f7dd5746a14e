"""Everything that only makes a network faster or smaller: the results change by rounding only.

This module is the only entry point: other modules import from here, not from the modules inside. An ``Accelerator``
rewrites one network and verifies the result on the first batch; ``Backend`` says what runs and why.
"""

from cretta.accelerate.accelerator import Accelerator, Backend
from cretta.accelerate.kernels import missing as missing_kernels
from cretta.accelerate.training import TRAINING_BACKENDS, fastest_training_backend, training_forward

__all__ = [
    "TRAINING_BACKENDS",
    "Accelerator",
    "Backend",
    "fastest_training_backend",
    "missing_kernels",
    "training_forward",
]
