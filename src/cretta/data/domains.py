"""The names of domains: "clean", or a corruption and its severity, such as "fog/5"."""

from cretta.data.corruptions import SEVERITIES, check_name_and_severity
from cretta.errors import OptionError

CLEAN = "clean"
"""The domain of images that are not shifted."""


def domain_name(corruption: str, severity: int) -> str:
    """Return the name of a corrupted domain; raise if there is no such corruption or severity.

    >>> domain_name("fog", 5)
    'fog/5'
    """
    check_name_and_severity(corruption, severity)
    return f"{corruption}/{severity}"


def parse_domain(domain: str) -> tuple[str, int]:
    """Return the corruption and the severity of a domain.

    >>> parse_domain("fog/5")
    ('fog', 5)
    """
    corruption, _, severity = domain.partition("/")
    if not severity.isdecimal():
        raise OptionError(
            f"domain {domain!r}: expected a corruption and its severity from {SEVERITIES[0]} to {SEVERITIES[-1]}, such "
            f"as fog/5, or {CLEAN}."
        )
    return corruption, int(severity)
