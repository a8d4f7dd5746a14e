"""Common image corruptions (Hendrycks and Dietterich, 2019): batched, seeded image by image, on all cores."""

from .generate import CORRUPTIONS, VALIDATION_CORRUPTIONS, check_corruption, corrupt
from .parameters import PARAMETER_SETS

__all__ = ["CORRUPTIONS", "PARAMETER_SETS", "VALIDATION_CORRUPTIONS", "check_corruption", "corrupt"]
