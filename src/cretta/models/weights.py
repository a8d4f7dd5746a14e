"""Named models: shipped weights, architectures without weights, and checkpoints made elsewhere."""

import hashlib
import json
import os
import re
from collections.abc import Mapping
from importlib import resources
from pathlib import Path
from typing import Any, TypeVar

import safetensors
import safetensors.torch
import torch
from torch import Tensor, nn

from cretta.errors import OptionError, StateError
from cretta.models.classifier import Channels, Classifier
from cretta.models.hub import is_pretrained, pretrained
from cretta.models.imagenet import EfficientNetLite0
from cretta.models.resnet import Norm, ResNet
from cretta.models.wide_resnet import WideResNet

AnyClassifier = TypeVar("AnyClassifier", bound=Classifier)

WEIGHTS = "model weights"
"""Kind of the files that training writes: weights with the facts about their network."""
SHIPPED = resources.files("cretta.models") / "shipped"

# Where public training code puts the weights inside what it saves, tried in this order.
_WRAPPERS = ("state_dict", "model_state_dict", "model_state", "model", "net", "last")
_PREFIXES = ("module.", "model.", "_orig_mod.")
_NORMALIZATION = {"mu": "mean", "sigma": "std", "normalize.mean": "mean", "normalize.std": "std"}
# RobustBench gives some WideResNets a second, never called, first stage.
_NEVER_CALLED = "sub_block1."


def names() -> tuple[str, ...]:
    """Return the names of the models that ship with their weights."""
    return tuple(sorted(_index()))


def card(name: str) -> dict[str, Any]:
    """Return what is known about a shipped model: architecture, names of classes, training data, license, scores.

    >>> card("wrn-40-2-cifar10")["class_names"][3]
    'cat'
    """
    index = _index()
    if name not in index:
        raise OptionError(
            f"no model {name!r}: shipped with weights are {', '.join(sorted(index))}. "
            "Other libraries' have a prefix: timm:, torchvision: or hf:. For an architecture without weights use "
            "build, for instance build('wrn-28-10', classes=100)."
        )
    return index[name]


def load(name: str) -> nn.Module:
    """Return a trained network by name, for images in [0, 1], on the CPU in eval mode.

    ``name`` is that of shipped weights, or ``timm:resnet50.a1_in1k``, ``torchvision:resnet50``,
    ``hf:microsoft/resnet-50`` (or ``hf:`` and a folder): a pretrained classifier of a library that is installed.

    >>> load("wrn-40-2-cifar10").classes
    10
    """
    if is_pretrained(name):
        return pretrained(name)[0]
    entry = card(name)
    try:
        content = (SHIPPED / entry["file"]).read_bytes()
    except OSError as error:
        raise StateError(f"the weights of {name} cannot be read ({error}): reinstall cretta.") from error
    sha256 = hashlib.sha256(content).hexdigest()
    if sha256 != entry["sha256"]:
        raise StateError(
            f"the weights of {name} are damaged: {entry['file']} has sha256 {sha256}, not {entry['sha256']}. Reinstall "
            "cretta."
        )
    # The initial values are not used: the caller's random numbers must not depend on them. (The meta
    # device would skip them, but its first use imports the compiler, which takes seconds.)
    with torch.random.fork_rng(devices=[]), torch.device("cpu"):
        model = build(entry["architecture"], classes=len(entry["class_names"]))
    _load_state(safetensors.torch.load(content), model)
    return model.eval()


def build(
    architecture: str,
    *,
    classes: int = 10,
    mean: Channels | None = None,
    std: Channels | None = None,
    norm: Norm = "batch",
) -> Classifier:
    """Return an untrained network: "wrn-depth-width", "resnet-depth", "resnet-depth-width" or "efficientnet-lite0".

    >>> build("resnet-26", classes=100).depth
    26
    """
    if match := re.fullmatch(r"wrn-(\d+)-(\d+)", architecture):
        if norm != "batch":
            raise OptionError(f"norm={norm!r} for {architecture}: a WideResNet has norm='batch' only; use a resnet.")
        return WideResNet(int(match[1]), int(match[2]), classes, mean, std)
    if match := re.fullmatch(r"resnet-(\d+)(?:-(\d+))?", architecture):
        return ResNet(int(match[1]), classes, int(match[2] or 16), norm, mean, std)
    if architecture == "efficientnet-lite0":
        return EfficientNetLite0(classes, None, mean, std)
    raise OptionError(
        f"no architecture {architecture!r}: expected wrn-depth-width (wrn-28-10), resnet-depth (resnet-26), "
        f"resnet-depth-width (resnet-26-32) or efficientnet-lite0. Shipped with weights: {', '.join(names())}."
    )


def load_checkpoint(source: str | os.PathLike[str] | Mapping[str, Any], model: AnyClassifier) -> AnyClassifier:
    """Load a checkpoint into `model`, in place, and return it; its train or eval mode stays.

    `source` is a state dict, a .safetensors file or a file of `torch.save`; nesting and prefixes that
    public training code adds are removed. A normalization in the checkpoint replaces the model's; without
    one the model's own stays (RobustBench's AugMix checkpoints hold none and expect 0.5 and 0.5).
    """
    if not isinstance(model, Classifier):
        raise OptionError(
            f"model is a {type(model).__name__}; expected a WideResNet or ResNet of cretta.models: "
            "load other networks with their own load_state_dict."
        )
    _load_state(source if isinstance(source, Mapping) else read_checkpoint(Path(source)), model)
    return model


def warm_start(model: Classifier, source: Classifier) -> list[str]:
    """Copy the tensors of ``source`` into ``model`` where name and shape agree; return the names of the others.

    For another number of classes that is the last layer. Networks that share less than half are refused.
    """
    state, start = model.state_dict(), source.state_dict()
    others = [name for name, value in state.items() if name not in start or start[name].shape != value.shape]
    if 2 * len(others) > len(state):
        shared = len(state) - len(others)
        raise StateError(
            f"{_description(source)} has {shared} of the {len(state)} tensors of {_description(model)}: start from "
            "weights of the same architecture."
        )
    model.load_state_dict({name: value if name in others else start[name] for name, value in state.items()})
    return others


def _index() -> dict[str, dict[str, Any]]:
    try:
        index: dict[str, dict[str, Any]] = json.loads((SHIPPED / "index.json").read_text("utf-8"))
    except (OSError, ValueError) as error:
        raise StateError(f"the list of shipped models cannot be read ({error}): reinstall cretta.") from error
    return index


def read_checkpoint(path: Path) -> Mapping[str, Any]:
    """Return the content of a .safetensors file or of a file of `torch.save`; no code in it is run."""
    if not path.is_file():
        raise StateError(f"no checkpoint at {path}; expected a .safetensors file or a file of torch.save.")
    try:
        if path.suffix == ".safetensors":
            return safetensors.torch.load_file(path)
        checkpoint = torch.load(path, map_location="cpu", weights_only=True)
    except OSError as error:
        raise StateError(f"{path} cannot be read: {error}.") from error
    # Unpickling a damaged file can raise nearly anything; its text is advice for callers of torch.load.
    except Exception as error:
        if objects := re.search(r"\bGLOBAL (\S+)", str(error)):
            raise StateError(
                f"{path} holds a pickled network or other objects ({objects[1]}), not only tensors: save "
                "net.state_dict() instead, or give the network itself as module:callable."
            ) from error
        with path.open("rb") as file:
            page = file.read(64).lstrip().startswith(b"<")
        problem = "is a web page, not a checkpoint: download" if page else "is not a checkpoint, or is damaged: copy"
        raise StateError(f"{path} {problem} it again; expected a .safetensors file or a file of torch.save.") from error
    if not isinstance(checkpoint, Mapping):
        raise StateError(f"{path} holds a {type(checkpoint).__name__}: save the model's state_dict() in it instead.")
    return checkpoint


def _load_state(checkpoint: Mapping[str, Any], model: Classifier) -> None:
    """Load the checkpoint under the names of `model`; raise, and change nothing, if it does not fit."""
    state = _renamed(checkpoint)
    values = {key: state.pop(key) for key in ("mean", "std") if key in state}
    expected = {key: value for key, value in model.state_dict().items() if key not in ("mean", "std")}
    for key in expected:
        if key.endswith(".num_batches_tracked"):
            state.setdefault(key, torch.zeros((), dtype=torch.long))
    problems = {
        "missing": [key for key in expected if key not in state],
        "not known here": [key for key in state if key not in expected],
        "of another shape": [
            f"{key} {_shape(state[key])} instead of {_shape(value)}"
            for key, value in expected.items()
            if key in state and _shape(state[key]) != _shape(value)
        ],
    }
    if any(problems.values()):
        described = [
            f"{len(keys)} {problem} ({', '.join(keys[:3])}{', ...' if len(keys) > 3 else ''})"
            for problem, keys in problems.items()
            if keys
        ]
        raise StateError(
            f"the checkpoint does not fit {_description(model)}: {'; '.join(described)}. Give the architecture=… and "
            "classes=… of the checkpoint."
        )
    if values:
        try:
            model.set_normalization(values.get("mean"), values.get("std"))
        except (OptionError, TypeError, ValueError) as error:
            raise StateError(f"the normalization in the checkpoint cannot be used: {error}") from error
    state |= {key: value for key, value in (("mean", model.mean), ("std", model.std)) if value is not None}
    model.load_state_dict(state)


def _renamed(checkpoint: Mapping[str, Any]) -> dict[str, Any]:
    """Return the tensors under the names they have here, without nesting and prefixes that training code adds."""
    while inner := [checkpoint[key] for key in _WRAPPERS if isinstance(checkpoint.get(key), Mapping)]:
        checkpoint = inner[0]
    state: dict[str, Any] = {}
    for original, value in checkpoint.items():
        key = str(original)
        while prefix := next((prefix for prefix in _PREFIXES if key.startswith(prefix)), ""):
            key = key.removeprefix(prefix)
        key = _NORMALIZATION.get(key, key)
        if key.startswith(_NEVER_CALLED):
            continue
        if key in state:
            raise StateError(
                f"the checkpoint holds {key} twice (also as {original}); expected the state dict of one model."
            )
        state[key] = value
    return state


def _description(model: Classifier) -> str:
    """Return the architecture, as :func:`build` takes it, and the number of classes."""
    family = {WideResNet: "wrn", ResNet: "resnet", EfficientNetLite0: "efficientnet-lite0"}.get(type(model), "network")
    sizes = [str(getattr(model, name)) for name in ("depth", "width") if hasattr(model, name)]
    return f"{'-'.join([family, *sizes])} with {model.classes} classes"


def _shape(value: object) -> tuple[int, ...] | str:
    return tuple(value.shape) if isinstance(value, Tensor) else f"a {type(value).__name__}"
