"""Convert text from the command line to values."""

from __future__ import annotations

import types
import typing
from collections.abc import Sequence
from itertools import product
from typing import TYPE_CHECKING, Any

from cretta.cli.console import count
from cretta.errors import BufferRequired, OptionError
from cretta.options import known

if TYPE_CHECKING:
    from pathlib import Path

    import torch

    from cretta.adapter import Adapter
    from cretta.data.dataset import Size
    from cretta.models.open import OpenedModel

WORDS = {"true": True, "yes": True, "on": True, "false": False, "no": False, "off": False}


def size(text: str | None, option: str = "--size") -> Size:
    """Return the image size: a side, ``224``, or height and width, ``32x48``."""
    if text is None:
        return None
    sides = text.lower().split("x")
    if len(sides) > 2 or not all(side.isdecimal() and int(side) > 0 for side in sides):
        raise OptionError(f"{option} {text}: expected a side, such as 224, or height and width, such as 32x32.")
    numbers = [int(side) for side in sides]
    return numbers[0] if len(numbers) == 1 else (numbers[0], numbers[1])


def size_for(model: OpenedModel, images: Path, text: str | None) -> Size:
    """Return the image size, by default that of the model; an array keeps the size it has."""
    return (model.side, model.side) if text is None and model.side and images.is_dir() else size(text)


def numbers(text: str | None, option: str) -> tuple[float, ...] | None:
    """Return numbers that are separated by commas, ``0.5,0.5,0.5``."""
    if text is None:
        return None
    try:
        return tuple(float(part) for part in text.split(","))
    except ValueError:
        raise OptionError(f"{option} {text}: expected numbers separated by commas, such as 0.5,0.5,0.5.") from None


def share_or_count(text: str, option: str = "--size") -> float:
    """Return a share, which has a decimal point, ``0.1``, or a number of images, ``1000``."""
    try:
        return int(text) if text.lstrip("+-").isdecimal() else float(text)
    except ValueError:
        raise OptionError(f"{option} {text}: expected a share, such as 0.1, or a number, such as 1000.") from None


def device(text: str) -> torch.device:
    """Return the device; ``auto`` is the GPU if there is one."""
    import torch

    if text == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(text)
    except RuntimeError:
        raise OptionError(f"--device {text}: expected auto, cpu, cuda or cuda:1.") from None
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        gpus = count(torch.cuda.device_count(), "GPU")
        raise OptionError(f"--device {text}: PyTorch sees {gpus} here; use auto or cpu.")
    if device.type not in ("cpu", "cuda"):
        raise OptionError(f"--device {text}: expected auto, cpu, cuda or cuda:1.")
    return device


def model(
    spec: str, architecture: str | None, classes: int | None, mean: str | None, std: str | None, device_name: str
) -> OpenedModel:
    """Return the model that these options describe."""
    from cretta.models import open_model

    return open_model(
        spec,
        architecture=architecture,
        classes=classes,
        mean=numbers(mean, "--mean"),
        std=numbers(std, "--std"),
        device=device(device_name),
    )


def guard(text: str | None) -> str | None:
    """Return the action of --guard; None where it is off or left out."""
    from cretta.monitor.guard import ACTIONS

    if text is not None:
        known("--guard", text, (*ACTIONS, "off"))
    return None if text == "off" else text


def options(method: str, pairs: Sequence[str], **others: str | int | None) -> dict[str, Any]:
    """Return ``key=value`` pairs as options of a method, with the types that the method declares.

    ``others`` are options of the method that the command has options for; None where they are not used.
    """
    from cretta import methods

    declared = methods.get(method).option_type
    kinds = typing.get_type_hints(declared)
    values: dict[str, Any] = {}
    for text in pairs:
        name, equals, value = (part.strip() for part in text.partition("="))
        if not equals:
            raise OptionError(f"--option {text}: expected key=value, such as lr=0.001.")
        known(f"option of {method}", name, declared.names())
        if name in values:
            raise OptionError(f"--option {text}: {name} is given twice; leave one out.")
        values[name] = _value(value, kinds[name])
    for name, setting in others.items():
        if setting is not None and name in values:
            raise OptionError(f"--{name} and --option {name}=… set the same option; give one of them.")
        values |= {name: setting} if setting is not None else {}
    return values


def adapter(net: Any, method: str, buffer: str | None, preset: str | None, options: dict[str, Any]) -> Adapter[Any]:
    """Return the adapter that these options describe."""
    from cretta.predict.adapter import open_adapter

    try:
        return open_adapter(net, method, buffer, preset, options)
    except BufferRequired as error:
        raise OptionError(
            f"--method {method} compares with source images: give --buffer FILE (cretta buffer build makes it from "
            "training images), --buffer embedded for the model that comes with cretta, or another method, such as "
            "tent; cretta does without by --option source=target."
        ) from error


def option_combinations(method: str, pairs: Sequence[str]) -> list[dict[str, Any]]:
    """Return the options of a method for each combination of the values in pairs such as ``beta=0.5|1``."""
    alternatives = [
        [f"{name}{equals}{value}" for value in values.split("|")]
        for name, equals, values in (pair.partition("=") for pair in pairs)
    ]
    return [options(method, combination) for combination in product(*alternatives)]


def _value(text: str, kind: Any) -> Any:
    """Return ``text`` as one of the types that ``kind`` allows, else unchanged: the option then raises the error."""
    kinds = typing.get_args(kind) if isinstance(kind, types.UnionType) else (kind,)
    if type(None) in kinds and text.lower() == "none":
        return None
    for allowed in kinds:
        if allowed is bool and text.lower() in WORDS:
            return WORDS[text.lower()]
        if typing.get_origin(allowed) is tuple:
            return tuple(part.strip() for part in text.split(",") if part.strip())
        if allowed in (int, float):
            try:
                return allowed(text)
            except ValueError:
                continue
    return text
