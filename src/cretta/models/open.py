"""Open any classifier from a name, a checkpoint, or code."""

from __future__ import annotations

import importlib
import re
import sys
import zipfile
from collections.abc import Sequence
from dataclasses import dataclass
from operator import attrgetter
from pathlib import Path
from typing import Any

import torch
from torch import nn

from cretta.errors import ModelError, OptionError, StateError
from cretta.models.classifier import Normalization, normalization, normalize_input
from cretta.models.hub import is_pretrained, pretrained, stated_classes
from cretta.models.weights import WEIGHTS, build, card, load, load_checkpoint, names, read_checkpoint
from cretta.storage import tensorfile

CHECKPOINTS = (".pt", ".pth", ".ckpt", ".safetensors")
COMPILED = {"constants.pkl", "archive_format", "serialized_exported_program.json"}
"""Files in the archives of TorchScript and of torch.export."""


@dataclass(frozen=True, eq=False)
class OpenedModel:
    """A network, and what is known of it."""

    net: nn.Module
    kind: str
    """shipped, checkpoint, pretrained or python."""
    classes: tuple[str, ...] = ()
    """Names of its classes, if it states them."""
    side: int | None = None
    """Of the square images it was trained on, if known."""


def open_model(
    spec: str | Path,
    *,
    architecture: str | None = None,
    classes: int | None = None,
    mean: Sequence[float] | None = None,
    std: Sequence[float] | None = None,
    device: str | torch.device = "cpu",
) -> OpenedModel:
    """Open a classifier of images in [0, 1], in eval mode, from a name, a file or code.

    ``spec`` is one of

    - a shipped name: ``wrn-40-2-cifar10``;
    - a checkpoint (.pt, .pth, .ckpt, .safetensors) of an ``architecture`` that cretta knows, with this number of
      ``classes``; a checkpoint of ``cretta train`` states both; no code in it is run;
    - ``module:callable``: imported, the current folder first, and called without arguments; it may also be a network;
    - ``timm:name``, ``torchvision:name``, ``hf:owner/name``: a pretrained network of timm, torchvision or Hugging Face,
      where these are installed, with its own normalization.

    ``mean`` and ``std``, one number per channel, are for networks that expect normalized images: the images are
    normalized before.

    Return the network as ``.net``, for :func:`cretta.adapt`, with what is known of it: ``.kind``, ``.classes`` (names)
    and ``.side`` (pixels).

    >>> opened = open_model("wrn-40-2-cifar10")
    >>> opened.kind, opened.classes[:2], opened.side
    ('shipped', ('airplane', 'automobile'), 32)
    """
    spec, path = str(spec), Path(spec)
    if not path.is_file() and (architecture is not None or classes is not None):
        options = [f"{k}={v!r}" for k, v in (("architecture", architecture), ("classes", classes)) if v is not None]
        raise OptionError(f"{', '.join(options)}: expected with a checkpoint, and {spec} is not one; leave it out.")
    values = normalization(mean, std)
    if path.is_file():
        opened = _checkpoint(path, architecture, classes, values)
    elif is_pretrained(spec):
        net, labels, side = pretrained(spec, values)
        opened = OpenedModel(net, "pretrained", labels, side)
    elif re.fullmatch(r"[\w.]+:[\w.]+", spec):
        opened = _python(spec, values)
    else:
        opened = _shipped(spec, values)
    opened.net.to(torch.device(device))
    return opened


def _shipped(spec: str, values: Normalization) -> OpenedModel:
    if spec not in names():
        raise OptionError(
            f"no model {spec!r}: it is not a file, and models shipped with weights are {', '.join(names())}. Give one "
            "of these, a checkpoint, timm:NAME, torchvision:NAME, hf:NAME, or module:callable."
        )
    if values is not None:
        raise OptionError(f"mean and std: {spec} normalizes its images itself; leave them out.")
    return OpenedModel(load(spec), "shipped", tuple(card(spec)["class_names"]), card(spec)["side"])


def _checkpoint(path: Path, architecture: str | None, classes: int | None, values: Normalization) -> OpenedModel:
    _check_file(path)
    facts, weights = _facts(path), read_checkpoint(path)
    architecture = architecture or facts.get("architecture")
    class_names = tuple(facts.get("classes", ()))
    classes = classes or len(class_names) or None
    if architecture is None or classes is None:
        raise OptionError(
            f"{path} is a checkpoint that does not say what network its weights are of, as those of `cretta train` do. "
            "Give the network itself as module:callable, or open it with architecture='wrn-40-2' and classes=10."
        )
    mean, std = values or (None, None)
    with torch.random.fork_rng(devices=[]):  # the initial values are not used
        net = build(architecture, classes=classes, mean=mean, std=std)
    return OpenedModel(load_checkpoint(weights, net).eval(), "checkpoint", class_names, facts.get("side"))


def _check_file(path: Path) -> None:
    """Raise unless a file can be a checkpoint."""
    if zipfile.is_zipfile(path):
        with zipfile.ZipFile(path) as archive:
            members = {member.rpartition("/")[2] for member in archive.namelist()}
        if members & COMPILED:
            raise ModelError(
                f"{path} is a compiled network (TorchScript or torch.export), whose normalization layers cannot be "
                "adapted: give the network that it was made from, as module:callable."
            )
    if path.suffix not in CHECKPOINTS:
        raise OptionError(f"{path}: expected a checkpoint ({', '.join(CHECKPOINTS)}).")


def _facts(path: Path) -> dict[str, Any]:
    """Return what `cretta train` wrote about the network; nothing for checkpoints made elsewhere."""
    try:
        return tensorfile.read(path, WEIGHTS, verify=False)[1] if path.suffix == ".safetensors" else {}
    except StateError:
        return {}


def _python(spec: str, values: Normalization) -> OpenedModel:
    module, _, attribute = spec.partition(":")
    here = str(Path.cwd())
    sys.path.insert(0, here)
    try:
        try:
            target: Any = attrgetter(attribute)(importlib.import_module(module))
        # The user's code can raise anything, and its message says what to correct.
        except Exception as error:
            raise OptionError(
                f"{spec} cannot be imported ({type(error).__name__}: {error}). Give module:callable, as on the import "
                f"line of a file in {here} or of an installed package."
            ) from error
        if callable(target) and not isinstance(target, nn.Module):
            try:
                target = target()
            except Exception as error:
                raise ModelError(
                    f"{spec}() failed ({type(error).__name__}: {error}); expected a callable that takes no arguments "
                    "and returns the network with its weights."
                ) from error
    finally:
        sys.path.remove(here)
    if not isinstance(target, nn.Module):
        raise ModelError(f"{spec} gave {type(target).__name__}; expected a torch.nn.Module that returns logits.")
    target.eval()
    if values is not None:
        normalize_input(target, *values)
    return OpenedModel(target, "python", stated_classes(target))
