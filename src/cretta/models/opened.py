"""Any classifier, by what a user has of it: a name, a checkpoint, code, or a compiled file."""

from __future__ import annotations

import importlib
import re
import sys
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from cretta.errors import ModelError, OptionError, StateError
from cretta.models.normalised import channel_values, put_in_front
from cretta.models.weights import WEIGHTS, build, class_names, load, load_checkpoint, names
from cretta.storage import tensorfile

CHECKPOINTS = (".pt", ".pth", ".ckpt", ".safetensors")
_SHIPPED_SIDE = 32
Normalisation = tuple[torch.Tensor, torch.Tensor] | None


@dataclass(frozen=True, eq=False)
class Opened:
    """A network, and what is known of it."""

    net: nn.Module
    kind: str
    """shipped, checkpoint, python, torchscript or exported."""
    classes: tuple[str, ...] = ()
    """Names of its classes, if it brings them."""
    side: int | None = None
    """Of the square images it was trained on, if known."""
    shape: tuple[int | None, ...] = ()
    """Of the batches it takes, if that is fixed: None where any size will do."""
    methods: tuple[str, ...] | None = None
    """The only methods that work with it; None for all."""
    limit: str = ""
    """Why only these."""
    remedy: str = ""
    """What would allow more."""

    def check(self, method: str, statistics: str | None = None) -> None:
        """Raises unless the network can be adapted so."""
        if self.methods is None:
            return
        if method not in self.methods:
            raise ModelError(
                f"method {method!r} does not work with this model: {self.limit}. Use {_either(self.methods)}; for all "
                f"methods, {self.remedy}."
            )
        allowed = ("running", "batch") if "bn_adapt" in self.methods else ("running",)
        if statistics is not None and statistics not in allowed:
            raise ModelError(
                f"statistics={statistics!r} does not work with this model: {self.limit}. Use {_either(allowed)}; for "
                f"others, {self.remedy}."
            )

    def check_batches(self, images: int, batch_size: int, *, source_data: bool) -> None:
        """Raises unless batches of this size, the last one included, are what the network takes."""
        fixed = self.shape[0] if self.shape else None
        if fixed is None:
            return
        if source_data or batch_size != fixed or images % fixed:
            trouble = (
                "source images are read in batches of other sizes"
                if source_data
                else f"{images} images in batches of {batch_size} are not all of that size"
            )
            from cretta.models.exported import FREE_BATCH

            raise ModelError(
                f"the program was exported for batches of exactly {fixed}, and {trouble}. Export it anew with "
                + FREE_BATCH
                + ("." if source_data else f", or give batches of {fixed} that come out even.")
            )


def open_model(
    spec: str | Path,
    *,
    architecture: str | None = None,
    classes: int | None = None,
    mean: Sequence[float] | None = None,
    std: Sequence[float] | None = None,
    device: str | torch.device = "cpu",
) -> Opened:
    """Open a classifier of images in [0, 1], in eval mode, from a name, a file or code.

    ``spec`` is one of

    - a shipped name: ``wrn-40-2-cifar10``;
    - a checkpoint (.pt, .pth, .ckpt, .safetensors) of an ``architecture`` that cretta knows, with so many ``classes``;
      a checkpoint of ``cretta train`` states both; no code in it is run;
    - ``module:callable``: imported, the current folder first, and called without arguments; a network is fine too;
    - a file of ``torch.export.save`` (.pt2), which may hold pickled objects: open those you trust;
    - a file of ``torch.jit.save``: for Source and, if it was scripted, not traced or frozen, BN-Adapt.

    ``mean`` and ``std``, one number per channel, are for networks that expect normalized images: the images are
    normalized before.

    Return the network as ``.net``, for :func:`cretta.adapt`, with what is known of it: ``.kind``, ``.classes`` (names),
    ``.side`` (pixels), ``.shape`` (of batches, if fixed) and ``.methods`` (the only ones that work; None for all).

    >>> opened = open_model("wrn-40-2-cifar10")
    >>> opened.kind, opened.classes[:2], opened.side
    ('shipped', ('airplane', 'automobile'), 32)
    """
    spec = str(spec)
    where = torch.device(device)
    normalisation = channel_values(mean, std)
    path = Path(spec)
    kind = _kind_of(path) if path.is_file() else "python" if re.fullmatch(r"[\w.]+:[\w.]+", spec) else "shipped"
    if kind != "checkpoint" and (architecture is not None or classes is not None):
        told = [f"{k}={v!r}" for k, v in (("architecture", architecture), ("classes", classes)) if v is not None]
        raise OptionError(f"{', '.join(told)}: expected with a checkpoint, and {spec} is not one; leave it out.")
    if kind == "checkpoint":
        opened = _checkpoint(path, architecture, classes, normalisation)
    elif kind == "torchscript":
        opened = _torchscript(path, normalisation, where)
    elif kind == "exported":
        opened = _exported(path, normalisation)
    elif kind == "python":
        opened = _python(spec, normalisation)
    else:
        opened = _shipped(spec, normalisation)
    opened.net.to(where)
    return opened


def _kind_of(path: Path) -> str:
    if zipfile.is_zipfile(path):
        with zipfile.ZipFile(path) as archive:
            members = {member.rpartition("/")[2] for member in archive.namelist()}
        if "constants.pkl" in members:
            return "torchscript"
        if members & {"archive_format", "serialized_exported_program.json"}:
            return "exported"
    if path.suffix == ".pt2":
        raise StateError(f"{path} is no exported program: write it anew by torch.export.save.")
    if path.suffix not in CHECKPOINTS:
        raise OptionError(
            f"{path}: give a checkpoint ({', '.join(CHECKPOINTS)}), a file of torch.jit.save, or one of "
            "torch.export.save (.pt2)."
        )
    return "checkpoint"


def _shipped(spec: str, normalisation: Normalisation) -> Opened:
    if spec not in names():
        raise OptionError(
            f"no model {spec!r}: it is no file, and shipped with weights are {', '.join(names())}. Give one of these, "
            "a checkpoint, a file of torch.jit.save or torch.export.save, or module:callable."
        )
    if normalisation is not None:
        raise OptionError(f"mean and std: {spec} normalises its images itself; leave them out.")
    return Opened(load(spec), "shipped", class_names(spec), _SHIPPED_SIDE)


def _checkpoint(path: Path, architecture: str | None, classes: int | None, normalisation: Normalisation) -> Opened:
    told = _facts(path)
    architecture = architecture or told.get("architecture")
    names_told = tuple(told.get("classes", ()))
    classes = classes or len(names_told) or None
    if architecture is None or classes is None:
        raise OptionError(
            f"{path} is a checkpoint that does not say what network its weights are of, as those of `cretta train` do. "
            "Give the network itself as module:callable, or open it with architecture='wrn-40-2' and classes=10."
        )
    mean, std = normalisation or (None, None)
    with torch.random.fork_rng(devices=[]):  # the initial values are thrown away
        net = build(architecture, classes=classes, mean=mean, std=std)
    return Opened(load_checkpoint(path, net).eval(), "checkpoint", names_told, told.get("side"))


def _facts(path: Path) -> dict[str, Any]:
    """What `cretta train` wrote of the network beside its weights; nothing for checkpoints made elsewhere."""
    try:
        return tensorfile.read(path, WEIGHTS, verify=False)[1] if path.suffix == ".safetensors" else {}
    except StateError:
        return {}


def _python(spec: str, normalisation: Normalisation) -> Opened:
    module, _, attribute = spec.partition(":")
    with _current_folder_first():
        try:
            found = importlib.import_module(module)
            for part in attribute.split("."):
                found = getattr(found, part)
        # Whatever the user's code raises is what they must know.
        except Exception as wrong:
            raise OptionError(
                f"{spec} cannot be imported ({type(wrong).__name__}: {wrong}). Give module:callable, as on the "
                f"import line of a file in {Path.cwd()} or of an installed package."
            ) from wrong
        net: object = found
        if callable(found) and not isinstance(found, nn.Module):
            try:
                net = found()
            except Exception as wrong:
                raise ModelError(
                    f"{spec}() failed ({type(wrong).__name__}: {wrong}). Needed is a callable that takes no arguments "
                    "and returns the network with its weights."
                ) from wrong
    if not isinstance(net, nn.Module):
        raise ModelError(f"{spec} gave a {type(net).__name__}; needed is a torch.nn.Module that returns logits.")
    net.eval()
    if normalisation is not None:
        put_in_front(net, *normalisation)
    return Opened(net, "python", _own_classes(net))


def _own_classes(net: nn.Module) -> tuple[str, ...]:
    """Names of classes that a network states: as ``classes``, or as ``config.id2label``, as Hugging Face does."""
    names = getattr(net, "classes", ())
    labels = getattr(getattr(net, "config", None), "id2label", None)
    if isinstance(labels, Mapping):
        names = [labels[number] for number in sorted(labels)]
    if not isinstance(names, tuple | list) or not all(isinstance(name, str) for name in names):
        return ()
    # LABEL_0 stands where there is no name; a name that is there twice tells nothing.
    return tuple(names) if len(set(names)) == len(names) and "LABEL_0" not in names else ()


def _torchscript(path: Path, normalisation: Normalisation, device: torch.device) -> Opened:
    from cretta.models.scripted import open_scripted

    remedy = "export it by torch.export, or give the network itself as module:callable"
    net = open_scripted(path, device)
    if normalisation is not None:
        put_in_front(net, *normalisation)
    if net.stand_ins:
        limit = "of compiled TorchScript only the BatchNorm statistics can be exchanged"
        return Opened(net, "torchscript", methods=("source", "bn_adapt"), limit=limit, remedy=remedy)
    limit = "it is a traced or frozen TorchScript module, with the BatchNorm statistics compiled in"
    return Opened(net, "torchscript", methods=("source",), limit=limit, remedy=remedy)


def _exported(path: Path, normalisation: Normalisation) -> Opened:
    # The import takes a second, which others need not wait for.
    from cretta.models.exported import open_exported

    net, shape, beyond = open_exported(path, normalisation)
    if not beyond:
        return Opened(net, "exported", shape=shape)
    limit = f"cretta cannot put a layer in the place of its {beyond}"
    remedy = "give the network itself as module:callable"
    return Opened(net, "exported", shape=shape, methods=("source",), limit=limit, remedy=remedy)


@contextmanager
def _current_folder_first() -> Iterator[None]:
    here = str(Path.cwd())
    sys.path.insert(0, here)
    try:
        yield
    finally:
        sys.path.remove(here)


def _either(choices: Sequence[str]) -> str:
    return " or ".join(repr(choice) for choice in choices)
