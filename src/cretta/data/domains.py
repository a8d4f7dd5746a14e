"""The names of domains: "clean", or a corruption and its severity, such as "fog/5"."""

from dataclasses import dataclass
from typing import Self

from cretta.data.corruptions import CORRUPTIONS, SEVERITIES, VALIDATION_CORRUPTIONS, check_name_and_severity
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


@dataclass(frozen=True)
class Domain:
    """A kind of target images: "clean", a corruption with its severity, or another name, such as "photo".

    >>> Domain.parse("fog/5"), str(Domain("fog", 5))
    (Domain(name='fog', severity=5), 'fog/5')
    """

    name: str
    severity: int | None = None

    def __str__(self) -> str:
        return self.name if self.severity is None else f"{self.name}/{self.severity}"

    @classmethod
    def parse(cls, text: str) -> Self:
        """Return the domain with this text."""
        name, _, severity = text.rpartition("/")
        if name in (*CORRUPTIONS, *VALIDATION_CORRUPTIONS) and severity not in map(str, SEVERITIES):
            raise OptionError(
                f"{text}: expected a severity from {SEVERITIES[0]} to {SEVERITIES[-1]} after the slash, as in {name}/5."
            )
        return cls(name, int(severity)) if severity.isdecimal() and name else cls(text)

    @classmethod
    def parse_all(cls, *texts: str) -> tuple[Self, ...]:
        """Return the domains with these texts."""
        return tuple(map(cls.parse, texts))

    @property
    def corruption(self) -> tuple[str, int]:
        """The corruption and its severity; raise if it is another kind of domain."""
        if self.severity is None:
            raise OptionError(
                f"domain {self.name!r}: expected a corruption and its severity from {SEVERITIES[0]} to "
                f"{SEVERITIES[-1]}, such as fog/5, or {CLEAN}."
            )
        return self.name, self.severity
