"""Options of methods: frozen dataclasses whose fields validate their values."""

from __future__ import annotations

import dataclasses
import difflib
import math
import numbers
import operator
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from types import UnionType
from typing import Any, Self

from cretta.errors import OptionError

Check = Callable[[Any], Any]
"""Take a value and return the one to store, or raise ValueError with what is allowed."""


def option(default: object, check: Check, description: str, *, values: tuple[str, ...] = ()) -> Any:
    """Return a dataclass field that validates its value by ``check``; ``values`` are shown in its description."""
    return dataclasses.field(default=default, metadata={"check": check, "description": description, "values": values})


def number(
    default: float | None,
    description: str,
    *,
    above: float | None = None,
    at_least: float | None = None,
    at_most: float | None = None,
    below: float | None = None,
) -> Any:
    """Return the field of a finite real number within bounds."""
    limits = (
        ("above", operator.gt, above),
        ("at least", operator.ge, at_least),
        ("at most", operator.le, at_most),
        ("below", operator.lt, below),
    )
    bounds = [(word, holds, bound) for word, holds, bound in limits if bound is not None]
    allowed = " ".join(["a finite number", " and ".join(f"{word} {bound:g}" for word, _, bound in bounds)]).strip()

    def check(value: Any) -> float | None:
        if value is None and default is None:
            return None
        if isinstance(value, bool) or not isinstance(value, numbers.Real) or not math.isfinite(value):
            raise ValueError(allowed)
        if not all(holds(float(value), bound) for _, holds, bound in bounds):
            raise ValueError(allowed)
        return float(value)

    return option(default, check, description)


def integer(default: int, description: str, *, at_least: int, at_most: int = 2**63 - 1) -> Any:
    """Return the field of an integer within bounds."""
    return option(default, lambda value: _as_integer(value, at_least, at_most), description)


def check_integer(name: str, value: object, *, at_least: int) -> int:
    """Return ``value`` as an int; raise unless it is an integer, of Python or NumPy, within the bound."""
    try:
        return _as_integer(value, at_least)
    except ValueError as error:
        raise OptionError(f"{name}={value!r}: expected {error}.") from None


def _as_integer(value: object, at_least: int, at_most: int = 2**63 - 1) -> int:
    result = None if isinstance(value, bool) or not isinstance(value, numbers.Integral) else int(value)
    if result is None or not at_least <= result <= at_most:
        upper = f" and at most {at_most}" if result is not None and result > at_most else ""
        raise ValueError(f"an integer, at least {at_least}{upper}")
    return result


def choice(default: str | None, description: str, *, among: Iterable[str]) -> Any:
    """Return the field of one of a few names; None is allowed where it is the default."""
    names = tuple(among)

    def check(value: Any) -> str | None:
        if value is None and default is None:
            return None
        if value not in names:
            raise ValueError(f"one of {', '.join(map(repr, names))}")
        return str(value)

    return option(default, check, description, values=names)


def flag(default: bool, description: str) -> Any:
    """Return the field of True or False."""
    return option(default, partial(_instance, bool, "True or False"), description)


def text(default: str | None, description: str) -> Any:
    """Return the field of a string, or None."""
    return option(default, partial(_instance, str | None, "a string, or None"), description)


def _instance(kind: type | UnionType, words: str, value: object) -> object:
    if not isinstance(value, kind):
        raise ValueError(words)
    return value


def texts(default: tuple[str, ...], description: str) -> Any:
    """Return the field of a tuple of strings; a list, or a single string, is converted."""

    def check(value: Any) -> tuple[str, ...]:
        items = (value,) if isinstance(value, str) else value
        if not isinstance(items, tuple | list) or not all(isinstance(item, str) for item in items):
            raise ValueError("a sequence of strings")
        return tuple(items)

    return option(default, check, description)


def unknown(kind: str, name: str, allowed: Iterable[str]) -> OptionError:
    """Return an error for an unknown name, with the nearest known one and the full list."""
    names = sorted(allowed)
    by_lower = {known.lower(): known for known in names}
    near = difflib.get_close_matches(str(name).lower(), by_lower, n=1)
    hint = f" Did you mean {by_lower[near[0]]!r}?" if near else ""
    shown = names if len(names) <= 40 else [*names[:40], f"… ({len(names)} in all)"]
    return OptionError(f"unknown {kind} {name!r}.{hint} Allowed: {', '.join(shown) or 'none'}.")


def known(kind: str, name: str, allowed: Iterable[str]) -> str:
    """Return ``name``; raise :func:`unknown` unless it is allowed."""
    if name not in allowed:
        raise unknown(kind, name, allowed)
    return name


@dataclasses.dataclass(frozen=True, kw_only=True)
class OptionSet:
    """A validated set of options; an invalid value raises :class:`~cretta.errors.OptionError`."""

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            try:
                value = field.metadata["check"](value)
            except ValueError as error:
                raise OptionError(
                    f"{field.name}={value!r}: expected {error} ({field.metadata['description']}; "
                    f"the default is {field.default!r})."
                ) from None
            object.__setattr__(self, field.name, value)

    @classmethod
    def check_declaration(cls) -> None:
        """Raise unless the class is a dataclass whose fields all validate their values."""
        if "__dataclass_fields__" not in vars(cls):
            raise OptionError(
                f"{cls.__name__} is not a dataclass; decorate it by @dataclasses.dataclass(frozen=True, kw_only=True)."
            )
        for field in dataclasses.fields(cls):
            if "check" not in field.metadata:
                raise OptionError(
                    f"option {field.name!r} of {cls.__name__}: expected a default from cretta.options, such as "
                    f"number(0.1, 'what it is', at_least=0), integer(…), choice(…) or flag(…), got {field.default!r}."
                )

    @classmethod
    def names(cls) -> tuple[str, ...]:
        """Return the names of all options, in order."""
        return tuple(field.name for field in dataclasses.fields(cls))

    @classmethod
    def describe(cls) -> str:
        """Return one line per option: its name, default, description and the names it takes."""
        lines = []
        for field in dataclasses.fields(cls):
            names = f" ({' | '.join(field.metadata['values'])})" if field.metadata["values"] else ""
            lines.append(f"{field.name} = {field.default!r}: {field.metadata['description']}{names}")
        return "\n".join(lines)

    @classmethod
    def make(cls, owner: str, preset: Mapping[str, Any], options: Mapping[str, Any]) -> Self:
        """Return the options of a preset, overridden by ``options``; ``owner`` is named in errors."""
        for name in options:
            known(f"option of {owner}", name, cls.names())
        return cls(**{**preset, **options})
