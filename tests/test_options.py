from __future__ import annotations

import dataclasses
import math
from typing import Any

import pytest

from cretta.errors import OptionError
from cretta.options import OptionSet, choice, flag, integer, number, option, texts, unknown


@dataclasses.dataclass(frozen=True, kw_only=True)
class Some(OptionSet):
    """One option of each kind."""

    rate: float = number(0.1, "how fast", above=0, at_most=1)
    decay: float = number(0.5, "how much", at_least=0, below=1)
    limit: float | None = number(None, "how far")
    count: int = integer(3, "how many", at_least=1)
    kind: str = choice("a", "which", among=("a", "b"))
    other: str | None = choice(None, "which other", among=("x", "y"))
    loud: bool = flag(False, "whether")
    whose: tuple[str, ...] = texts((), "whose")
    even: int = option(2, lambda v: v if v % 2 == 0 else _refuse(), "an even one")


def _refuse() -> int:
    raise ValueError("an even number")


@pytest.mark.parametrize(
    ("name", "value", "kept"),
    [
        ("rate", 1, 1.0),  # at most: included
        ("rate", 1e-300, 1e-300),
        ("decay", 0, 0.0),  # at least: included
        ("decay", math.nextafter(1, 0), math.nextafter(1, 0)),
        ("limit", None, None),
        ("limit", -3, -3.0),
        ("count", 1, 1),
        ("kind", "b", "b"),
        ("other", None, None),
        ("other", "y", "y"),
        ("loud", True, True),
        ("whose", "one", ("one",)),
        ("whose", ["one", "two"], ("one", "two")),
        ("whose", (), ()),
        ("even", 4, 4),
    ],
)
def test_what_is_allowed_is_kept(name: str, value: Any, kept: Any) -> None:
    found = getattr(Some(**{name: value}), name)
    assert found == kept
    assert type(found) is type(kept)


@pytest.mark.parametrize(
    ("name", "value", "allowed"),
    [
        ("rate", 0, "a finite number above 0 and at most 1"),  # above: not included
        ("rate", 1.0000001, "a finite number above 0 and at most 1"),
        ("rate", float("nan"), "a finite number"),
        ("rate", float("inf"), "a finite number"),
        ("rate", True, "a finite number"),
        ("rate", "0.1", "a finite number"),
        ("rate", None, "a finite number"),
        ("decay", 1, "a finite number at least 0 and below 1"),  # below: not included
        ("decay", -1e-9, "at least 0"),
        ("limit", "far", "a finite number"),
        ("count", 0, "an integer, at least 1"),
        ("count", 2.0, "an integer"),
        ("count", True, "an integer"),
        ("kind", "c", "one of 'a', 'b'"),
        ("kind", None, "one of 'a', 'b'"),
        ("kind", ["a"], "one of 'a', 'b'"),
        ("other", "z", "one of 'x', 'y'"),
        ("loud", 1, "True or False"),
        ("loud", None, "True or False"),
        ("whose", 3, "a sequence of strings"),
        ("whose", ["one", 2], "a sequence of strings"),
        ("even", 3, "an even number"),
    ],
)
def test_what_is_not_says_so(name: str, value: Any, allowed: str) -> None:
    with pytest.raises(OptionError) as caught:
        Some(**{name: value})
    message = str(caught.value)
    field = {f.name: f for f in dataclasses.fields(Some)}[name]
    assert message.startswith(f"{name}={value!r}: expected ")
    assert allowed in message
    assert field.metadata["description"] in message
    assert f"the default is {field.default!r}" in message


def test_defaults_are_checked_too() -> None:
    @dataclasses.dataclass(frozen=True, kw_only=True)
    class Wrong(OptionSet):
        rate: float = number(-1.0, "how fast", above=0)

    with pytest.raises(OptionError, match=r"rate=-1\.0"):
        Wrong()


def test_options_cannot_be_changed_afterwards() -> None:
    options = Some()
    with pytest.raises(dataclasses.FrozenInstanceError):
        options.rate = 0.2  # type: ignore[misc]


def test_keywords_go_over_the_preset() -> None:
    options = Some.make("some", {"rate": 0.2, "count": 5}, {"count": 7})
    assert (options.rate, options.count, options.kind) == (0.2, 7, "a")


def test_a_preset_is_checked_as_well() -> None:
    with pytest.raises(OptionError, match="rate=7"):
        Some.make("some", {"rate": 7}, {})


def test_an_unknown_name_gets_a_hint_and_the_list() -> None:
    with pytest.raises(OptionError) as caught:
        Some.make("some", {}, {"rte": 0.2})
    message = str(caught.value)
    assert "unknown option of some 'rte'" in message
    assert "Did you mean 'rate'?" in message
    assert all(name in message for name in Some.names())


def test_names_in_order() -> None:
    assert Some.names() == ("rate", "decay", "limit", "count", "kind", "other", "loud", "whose", "even")


def test_unknown_without_anything_near_or_allowed() -> None:
    assert str(unknown("fruit", "apple", ["zebra", "yak"])) == "unknown fruit 'apple'. Allowed: yak, zebra."
    assert str(unknown("fruit", "apple", [])) == "unknown fruit 'apple'. Allowed: none."
