"""Common image corruptions (Hendrycks and Dietterich, 2019): batched, seeded image by image, on all cores."""

from cretta.data.corruptions.generate import (
    CORRUPTIONS,
    VALIDATION_CORRUPTIONS,
    check_corruption,
    check_name_and_severity,
    corrupt,
)
from cretta.data.corruptions.parameters import PARAMETER_SETS, SEVERITIES

__all__ = [
    "CORRUPTIONS",
    "PARAMETER_SETS",
    "SEVERITIES",
    "VALIDATION_CORRUPTIONS",
    "check_corruption",
    "check_name_and_severity",
    "corrupt",
]
