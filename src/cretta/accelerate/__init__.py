"""Everything that only makes a network faster or smaller: the results change by rounding only.

This module is the only entry point: other modules import from here, not from the modules inside. An ``Accelerator``
rewrites one network and verifies the result on the first batch; ``Backend`` says what runs and why.
"""

from cretta.accelerate.accelerator import Accelerator, Backend
from cretta.accelerate.bfloat16 import is_faster as bfloat16_is_faster
from cretta.accelerate.bfloat16 import missing as missing_bfloat16
from cretta.accelerate.choices import Choice
from cretta.accelerate.choices import pin as pin_choices
from cretta.accelerate.choices import record as recorded_choices
from cretta.accelerate.kernels import describe as describe_kernels
from cretta.accelerate.kernels import missing as missing_kernels
from cretta.accelerate.kernels import setting as kernel_setting
from cretta.accelerate.operations import typical_choices
from cretta.accelerate.processor import processor_name
from cretta.accelerate.training import TRAINING_BACKENDS, fastest_training_backend, training_forward
from cretta.accelerate.winograd import forget_transforms as forget_weights

__all__ = [
    "TRAINING_BACKENDS",
    "Accelerator",
    "Backend",
    "Choice",
    "bfloat16_is_faster",
    "describe_kernels",
    "fastest_training_backend",
    "forget_weights",
    "kernel_setting",
    "missing_bfloat16",
    "missing_kernels",
    "pin_choices",
    "processor_name",
    "recorded_choices",
    "training_forward",
    "typical_choices",
]
