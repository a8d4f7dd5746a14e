"""What is given on the command line, as the values that are meant."""

from __future__ import annotations

import types
import typing
from collections.abc import Sequence
from typing import Any

import torch

from cretta import methods
from cretta.data.dataset import Size
from cretta.errors import OptionError
from cretta.options import unknown

WORDS = {"true": True, "yes": True, "on": True, "false": False, "no": False, "off": False}


def size(text: str | None, option: str = "--size") -> Size:
    """A side, ``224``, or height and width, ``32x48``."""
    if text is None:
        return None
    sides = text.lower().split("x")
    if len(sides) > 2 or not all(side.isdecimal() and int(side) > 0 for side in sides):
        raise OptionError(f"{option} {text}: give a side, such as 224, or height and width, such as 32x32.")
    numbers = [int(side) for side in sides]
    return numbers[0] if len(numbers) == 1 else (numbers[0], numbers[1])


def numbers(text: str | None, option: str) -> tuple[float, ...] | None:
    """Numbers with commas between, ``0.5,0.5,0.5``."""
    if text is None:
        return None
    try:
        return tuple(float(part) for part in text.split(","))
    except ValueError:
        raise OptionError(f"{option} {text}: give numbers with commas between, such as 0.5,0.5,0.5.") from None


def amount(text: str, option: str = "--size") -> float:
    """A share with a point in it, ``0.1``, or a whole number of images, ``1000``."""
    try:
        return int(text) if text.lstrip("+-").isdecimal() else float(text)
    except ValueError:
        raise OptionError(f"{option} {text}: give a share, such as 0.1, or a number of images, such as 1000.") from None


def device(text: str) -> torch.device:
    """``auto`` is the GPU if there is one."""
    if text == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        found = torch.device(text)
    except RuntimeError:
        raise OptionError(f"--device {text}: give auto, cpu, cuda or cuda:1.") from None
    if found.type == "cuda" and (found.index or 0) >= torch.cuda.device_count():
        raise OptionError(f"--device {text}: PyTorch sees {torch.cuda.device_count()} GPUs here; give auto or cpu.")
    if found.type not in ("cpu", "cuda"):
        raise OptionError(f"--device {text}: give auto, cpu, cuda or cuda:1.")
    return found


def options(method: str, given: Sequence[str]) -> dict[str, Any]:
    """``key=value`` pairs as options of a method, each of the type that the method declares."""
    declared = methods.get(method).option_type
    kinds = typing.get_type_hints(declared)
    found: dict[str, Any] = {}
    for text in given:
        name, equals, value = (part.strip() for part in text.partition("="))
        if not equals:
            raise OptionError(f"--option {text}: give key=value, such as lr=0.001.")
        if name not in declared.names():
            raise unknown(f"option of {method}", name, declared.names())
        if name in found:
            raise OptionError(f"--option {text}: {name} is given twice.")
        found[name] = _value(value, kinds[name])
    return found


def _value(text: str, kind: Any) -> Any:
    """``text`` as one of the types that ``kind`` allows; text where it is none of them, for the option to refuse."""
    kinds = typing.get_args(kind) if isinstance(kind, types.UnionType) else (kind,)
    if type(None) in kinds and text.lower() == "none":
        return None
    for each in kinds:
        if each is bool and text.lower() in WORDS:
            return WORDS[text.lower()]
        if typing.get_origin(each) is tuple:
            return tuple(part.strip() for part in text.split(",") if part.strip())
        if each in (int, float):
            try:
                return each(text)
            except ValueError:
                continue
    return text
