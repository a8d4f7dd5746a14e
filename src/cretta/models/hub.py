"""Pretrained classifiers of timm, torchvision and Hugging Face by name, and networks here as Hugging Face models."""

from __future__ import annotations

import copy
import importlib
import inspect
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from cretta.errors import ModelError, OptionError
from cretta.models.classifier import Classifier, Normalization, normalization, normalize_input

LIBRARIES = {"timm": "timm", "torchvision": "torchvision", "hf": "transformers"}
"""The package that has the models of a prefix, as in ``timm:resnet50``."""
AnyClassifier = TypeVar("AnyClassifier", bound=Classifier)


def is_pretrained(spec: str) -> bool:
    """Return whether a name is one of these libraries'."""
    return spec.partition(":")[0] in LIBRARIES and ":" in spec


def pretrained(spec: str, values: Normalization = None) -> tuple[nn.Module, tuple[str, ...], int | None]:
    """Return a network for images in [0, 1] in eval mode, the names of its classes, and the side of its images.

    The images are normalized as the library states, or by ``values``.
    """
    library, _, name = spec.partition(":")
    package = package_of(LIBRARIES[library], spec)
    try:
        net, mean, std, side, class_names = _READERS[library](package, name)
    # Each library raises its own errors, for unknown names and for downloads; their messages say what to correct.
    except Exception as error:
        raise ModelError(
            f"{spec} cannot be loaded by {LIBRARIES[library]} ({type(error).__name__}: {error}). Check the name and "
            "the network, or load it yourself and give it to cretta.adapt."
        ) from error
    values = values or normalization(mean, std)
    if values is not None:
        normalize_input(net, *values)
    return net.eval(), class_names, side


def package_of(name: str, purpose: str) -> Any:
    """Import an optional package; raise an error that says how to install it."""
    try:
        return importlib.import_module(name)
    except (ImportError, RuntimeError) as error:  # a torchvision built for another PyTorch raises a RuntimeError
        raise OptionError(
            f"{purpose}: {name} cannot be imported ({type(error).__name__}: {error}). Install it with: pip install "
            f"{name}"
        ) from error


def _timm(timm: Any, name: str) -> tuple[Any, ...]:
    net = timm.create_model(name, pretrained=True)
    facts = net.pretrained_cfg
    return net, facts["mean"], facts["std"], facts.get("input_size", (None,))[-1], ()


def _torchvision(torchvision: Any, name: str) -> tuple[Any, ...]:
    weights = torchvision.models.get_model_weights(name).DEFAULT
    transform = weights.transforms()
    net = torchvision.models.get_model(name, weights=weights)
    return net, transform.mean, transform.std, transform.crop_size[0], tuple(weights.meta["categories"])


def _hugging_face(transformers: Any, name: str) -> tuple[Any, ...]:
    net = transformers.AutoModelForImageClassification.from_pretrained(name)
    # Only the file: the class that applies it needs torchvision for many models.
    processing = importlib.import_module("transformers.image_processing_base")
    facts, _ = processing.ImageProcessingMixin.get_image_processor_dict(name)
    values = (facts.get("image_mean"), facts.get("image_std")) if facts.get("do_normalize", True) else (None, None)
    size = facts.get("crop_size") if facts.get("do_center_crop") else facts.get("size")
    side = size if isinstance(size, int) else (size or {}).get("height", (size or {}).get("shortest_edge"))
    return net, *values, side, stated_classes(net)


_READERS = {"timm": _timm, "torchvision": _torchvision, "hf": _hugging_face}


def stated_classes(net: nn.Module) -> tuple[str, ...]:
    """Return the class names that a network states, as ``classes`` or (Hugging Face) as ``config.id2label``."""
    stated = getattr(net, "classes", ())
    labels = getattr(getattr(net, "config", None), "id2label", None)
    if isinstance(labels, Mapping):
        stated = [labels[number] for number in sorted(labels)]
    if not isinstance(stated, tuple | list) or not all(isinstance(name, str) for name in stated):
        return ()
    # LABEL_0 means that there are no names; with a name that occurs twice, names do not identify classes.
    return tuple(stated) if len(set(stated)) == len(stated) and "LABEL_0" not in stated else ()


def save_pretrained(net: Classifier, folder: str | Path, **options: Any) -> None:
    """Write the folder of a Hugging Face model; ``options`` are those of ``PyTorchModelHubMixin.save_pretrained``."""
    values = {name: getattr(net, name) for name in inspect.signature(type(net)).parameters}
    config = {name: value.flatten().tolist() if isinstance(value, Tensor) else value for name, value in values.items()}
    saved = copy.copy(net)
    saved.__class__ = _mixed(type(net))
    saved.save_pretrained(folder, config=config, **options)


def from_pretrained(kind: type[AnyClassifier], source: str | Path, **options: Any) -> AnyClassifier:
    """Return the network of such a folder, or of the Hugging Face hub, in eval mode."""
    with torch.random.fork_rng(devices=[]):  # the initial values are not used
        net: AnyClassifier = _mixed(kind).from_pretrained(source, strict=True, **options)
    net.__class__ = kind  # the class with the mixin has no name that pickle could look up
    return net


def _mixed(kind: type[Classifier]) -> Any:
    """Return the class with the methods of the hub. Not its base: the import takes a second, and few need it."""
    mixin = package_of("huggingface_hub", "save_pretrained and from_pretrained").PyTorchModelHubMixin
    return type(kind.__name__, (mixin, kind), {"__module__": kind.__module__}, library_name="cretta")
