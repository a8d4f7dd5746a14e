"""Mean corruption error: errors under many corruptions as one number, relative to a base model's."""

from __future__ import annotations

import math
from collections.abc import Mapping

from cretta.errors import OptionError

Errors = Mapping[str, Mapping[int, float]]
"""Classification errors, as fractions, by corruption and severity."""


def mean_corruption_error(errors: Errors, base: Errors) -> float:
    """Mean over corruptions of Σ_severity error / Σ_severity error of ``base``, in per cent (Hendrycks & Dietterich).

    ``base`` are the errors of the same model without adaptation, whose own value is 100.

    >>> mean_corruption_error({"fog": {5: 0.1}, "snow": {5: 0.3}}, {"fog": {5: 0.2}, "snow": {5: 0.4}})
    62.5
    """
    if not base:
        raise OptionError("base is empty; give the errors of the unadapted model, as {corruption: {severity: error}}.")
    severities = sorted(set().union(*base.values()))
    if not severities:
        raise OptionError("base has corruptions without severities; needed is {corruption: {severity: error}}.")
    for name, given in (("errors", errors), ("base", base)):
        _check(name, given, sorted(base), severities)
    shares = []
    for corruption, of_base in base.items():
        whole = math.fsum(of_base.values())
        if whole == 0:
            raise OptionError(
                f"base makes no error on {corruption!r}, so nothing can be relative to it; leave the corruption out of "
                "both, or compare errors directly."
            )
        shares.append(math.fsum(errors[corruption].values()) / whole)
    return 100 * math.fsum(shares) / len(shares)


def _check(name: str, given: Errors, corruptions: list[str], severities: list[int]) -> None:
    if sorted(given) != corruptions:
        raise OptionError(
            f"{name} has the corruptions {sorted(given)}, base {corruptions}; both need the same ones, each once."
        )
    for corruption, by_severity in given.items():
        if sorted(by_severity) != severities:
            raise OptionError(
                f"{name} has severities {sorted(by_severity)} of {corruption!r}; needed are {severities}, the same for "
                "every corruption in errors and base."
            )
        for severity, error in by_severity.items():
            if not 0 <= error <= 1:
                raise OptionError(
                    f"{name}[{corruption!r}][{severity}] is {error!r}; needed is an error as a fraction in [0, 1], "
                    "which is 1 - accuracy; divide per cents by 100."
                )
