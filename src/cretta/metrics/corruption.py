"""Mean corruption error: errors under many corruptions as one number, relative to those of a base model."""

from __future__ import annotations

import math
from collections.abc import Mapping

from cretta.errors import OptionError

Errors = Mapping[str, Mapping[int, float]]
"""Classification errors, as fractions, by corruption and severity."""


def mean_corruption_error(errors: Errors, base: Errors) -> float:
    """Return the mean over corruptions of Σ_severity error / Σ_severity error of ``base``, in percent.

    ``base`` are the errors of the same model without adaptation, whose own value is 100 (Hendrycks & Dietterich, 2019).

    >>> mean_corruption_error({"fog": {5: 0.1}, "snow": {5: 0.3}}, {"fog": {5: 0.2}, "snow": {5: 0.4}})
    62.5
    """
    severities = sorted(set().union(*base.values())) if base else []
    if not severities:
        raise OptionError("base is empty: expected the errors of the unadapted model, {corruption: {severity: error}}.")
    for name, table in (("errors", errors), ("base", base)):
        _check(name, table, sorted(base), severities)
    shares = []
    for corruption, of_base in base.items():
        total = math.fsum(of_base.values())
        if total == 0:
            raise OptionError(
                f"base makes no error on {corruption!r}, so nothing can be relative to it; leave the corruption out of "
                "both, or compare errors directly."
            )
        shares.append(math.fsum(errors[corruption].values()) / total)
    return 100 * math.fsum(shares) / len(shares)


def _check(name: str, table: Errors, corruptions: list[str], severities: list[int]) -> None:
    if sorted(table) != corruptions:
        raise OptionError(f"expected the same corruptions in errors and base, got {sorted(table)} and {corruptions}.")
    for corruption, by_severity in table.items():
        if sorted(by_severity) != severities:
            raise OptionError(
                f"{name} has severities {sorted(by_severity)} of {corruption!r}: expected {severities}, the same for "
                "every corruption in errors and base."
            )
        for severity, error in by_severity.items():
            if not 0 <= error <= 1:
                raise OptionError(
                    f"{name}[{corruption!r}][{severity}] is {error!r}: expected an error as a fraction in [0, 1], "
                    "which is 1 - accuracy; divide percentages by 100."
                )
