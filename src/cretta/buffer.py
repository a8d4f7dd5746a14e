"""SourceBuffer: a small class-balanced set of source images, used in order."""

from __future__ import annotations

import copy
import os
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Protocol, Self

import numpy as np
import torch
from rich.progress import track
from torch import Tensor, nn
from torch.utils.data import Subset

from cretta import augment as augmentations
from cretta.augment import AUGMENTATIONS, Augmentation
from cretta.data.dataset import ArrayDataset, FileDataset
from cretta.errors import BatchError, OptionError, StateError
from cretta.network import copy_sharing_parameters, logits_of
from cretta.storage import tensorfile

KIND = "source buffer"
SELECT = ("random", "confident", "uncertain")
BLOCK = 64
"""Kept augmentations are made by blocks, so that they do not depend on the order of reading."""
Track = Callable[..., Iterable[Any]]


class Dataset(Protocol):
    """Anything with a length and numbered items: images, or (image, label) pairs."""

    def __len__(self) -> int: ...
    def __getitem__(self, index: int, /) -> Any: ...


class SourceBuffer:
    """Source images for methods that compare with them.

    ``images`` are what the network takes: (N, C, H, W) tensors, or uint8 (N, H, W, C) arrays. Bytes reach the network
    as floats in [0, 1]. Values k/255 are stored as bytes without loss, others as they are. ``augment`` is "none",
    "rotate", "cifar100" or a callable on float batches; each image is augmented once and kept, or afresh at every use
    with ``renew=True``. Which images come next is the reader's affair: a buffer may serve many adapters.

    >>> buffer = SourceBuffer(torch.zeros(3, 1, 4, 4), augment="none")
    >>> buffer.batch(2, 5).shape
    torch.Size([5, 1, 4, 4])
    """

    def __init__(
        self,
        images: Tensor | np.ndarray[Any, Any],
        labels: Tensor | Sequence[int] | np.ndarray[Any, Any] | None = None,
        augment: str | Augmentation = "rotate",
        *,
        renew: bool = False,
        seed: int = 0,
    ) -> None:
        stored = _stored(_channels_first(images))
        if len(stored) == 0:
            raise OptionError("the buffer has no images; give at least one.")
        self._set(stored, None if labels is None else _whole(labels, len(stored)), augment, renew, seed)

    def _set(self, images: Tensor, labels: Tensor | None, augment: str | Augmentation, renew: bool, seed: int) -> None:
        self.images = images
        self.labels = labels
        self.seed = seed
        self._renew = renew
        self._set_augment(augment)

    def _set_augment(self, augment: str | Augmentation) -> None:
        self.augment = augment
        if callable(augment):
            self._augmentation: Augmentation | None = augment
        elif augment != "none" and self.images.dim() != 4:
            raise OptionError(
                f"augment={augment!r} needs images (N, C, H, W); these have shape {tuple(self.images.shape)}. Pass "
                "augment='none' or a callable."
            )
        else:
            self._augmentation = augmentations.by_name(augment, self.images.shape[-2], self.images.shape[-1])
        self.renews = self._renew and self._augmentation is not None
        self._fingerprint: str | None = None
        self._kept: Tensor | None = None
        self._kept_blocks: set[int] = set()

    def with_augment(self, augment: str | Augmentation) -> Self:
        """The same images under another augmentation."""
        if augment == self.augment:
            return self
        other = copy.copy(self)
        other._set_augment(augment)
        return other

    @classmethod
    def sample(
        cls,
        dataset: Dataset,
        size: float = 0.1,
        select: str = "random",
        seed: int = 0,
        *,
        model: nn.Module | None = None,
        augment: str | Augmentation = "rotate",
        renew: bool = False,
        progress: bool | Track = False,
    ) -> Self:
        """Draws a buffer, balanced over the classes, from ``dataset``.

        ``size`` is a fraction (0.1) or a count (1000). ``select`` takes at random, or the samples of each class
        that the source ``model`` is most or least confident of. The order mixes the classes evenly, so that
        every batch in it is about balanced. Without labels the draw is over the whole set. ``progress`` shows a bar, or
        is a function that iterates over a sequence and shows how far it is, as ``rich.progress.Progress.track``.
        """
        if select not in SELECT:
            raise OptionError(f"select={select!r}: allowed are {', '.join(map(repr, SELECT))}.")
        if select != "random" and model is None:
            raise OptionError(f"select={select!r} asks the source model; pass model=net.")
        _check_dataset(dataset)
        total = _count(size, len(dataset))
        generator = np.random.default_rng(seed)
        labels = _labels(dataset, progress)
        order = generator.permutation(len(dataset))
        if select != "random":
            assert model is not None
            confidence = _confidence(dataset, model, progress)
            order = order[np.argsort(confidence[order] * (-1 if select == "confident" else 1), kind="stable")]
        groups = np.zeros(len(dataset), dtype=np.int64) if labels is None else labels
        chosen = _balanced(order, groups, total, generator)
        images = _gather(dataset, chosen, progress)
        kept = None if labels is None else labels[chosen]
        return cls(images, kept, augment, renew=renew, seed=seed)

    def __len__(self) -> int:
        return len(self.images)

    def __repr__(self) -> str:
        name = self.augment if isinstance(self.augment, str) else _qualified(self.augment)
        return f"SourceBuffer({len(self)} images {tuple(self.images.shape[1:])}, augment={name!r})"

    def batch(self, start: int, count: int, *, draw: int = 0, like: Tensor | None = None) -> Tensor:
        """``count`` images from ``start`` on, cycling; on the device, in the type and layout of ``like``.

        ``draw`` numbers the reading: with ``renew`` it decides the augmentation.
        """
        index = torch.arange(start, start + count) % len(self)
        device = like.device if like is not None else self.images.device
        dtype = torch.float64 if like is not None and like.dtype == torch.float64 else torch.float32
        if self._augmentation is None:
            images = _floats(self.images[index].to(device), dtype)
        elif self.renews:
            images = _floats(self.images[index].to(device), dtype)
            images = augmentations.apply(self._augmentation, images, self.seed, 1, draw)
        else:
            with augmentations.LOCK:
                images = _floats(self._augmented(index).to(device), dtype)
        if like is None:
            return images
        if images.shape[1:] != like.shape[1:]:
            raise BatchError(
                f"the buffer holds samples of shape {tuple(images.shape[1:])}, the batch of {tuple(like.shape[1:])}; "
                "build the buffer from what net takes."
            )
        channels_last = like.dim() == 4 and like.is_contiguous(memory_format=torch.channels_last)
        return images.to(
            like.dtype if like.is_floating_point() else images.dtype,
            memory_format=torch.channels_last if channels_last else torch.contiguous_format,
        )

    def _augmented(self, index: Tensor) -> Tensor:
        assert self._augmentation is not None
        if self._kept is None:
            # What a callable makes may lie between, or outside of, the 256 levels.
            levels = isinstance(self.augment, str) and self.images.dtype == torch.uint8
            dtype = torch.float32 if self.images.dtype == torch.uint8 and not levels else self.images.dtype
            with torch.inference_mode(False):
                self._kept = torch.empty_like(self.images, dtype=dtype)
        for block in {i // BLOCK for i in index.tolist()} - self._kept_blocks:
            window = slice(block * BLOCK, (block + 1) * BLOCK)
            images = _floats(self.images[window].clone(), torch.float32)
            images = augmentations.apply(self._augmentation, images, self.seed, 0, block)
            if self._kept.dtype == torch.uint8:
                images = images.mul(255).round().clamp(0, 255)
            self._kept[window] = images.to(self._kept.dtype)
            self._kept_blocks.add(block)
        return self._kept[index]

    @property
    def fingerprint(self) -> str:
        """SHA-256 of images, labels and how they are augmented."""
        if self._fingerprint is None:
            labels = [] if self.labels is None else [self.labels]
            name = self.augment if isinstance(self.augment, str) else _qualified(self.augment)
            self._fingerprint = tensorfile.fingerprint(
                [self.images, *labels, f"{name} renew={self.renews} seed={self.seed}"]
            )
        return self._fingerprint

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes images, labels and settings to a safetensors file."""
        tensors = {"images": self.images} | ({} if self.labels is None else {"labels": self.labels})
        augment = self.augment if isinstance(self.augment, str) else None
        facts = {"kind": KIND, "augment": augment, "renew": self._renew, "seed": self.seed}
        tensorfile.write(path, tensors, {**facts, "fingerprint": self.fingerprint})

    @classmethod
    def load(
        cls, path: str | os.PathLike[str], *, augment: str | Augmentation | None = None, verify: bool = True
    ) -> Self:
        """Maps a saved buffer into memory; images are read from disk when used.

        ``verify`` reads the whole file once to compare it with its checksum. A callable augmentation is not in the
        file and must be passed again.
        """
        tensors, facts = tensorfile.read(path, KIND, verify=verify)
        try:
            images, labels, seed = tensors["images"], tensors.get("labels"), int(facts["seed"])
            renew, kept, fingerprint = bool(facts["renew"]), facts["augment"], str(facts["fingerprint"])
        except (KeyError, TypeError, ValueError) as wrong:
            raise StateError(f"{path}: lacks a part ({wrong}); the file is damaged, save it anew.") from wrong
        used = augment if augment is not None else kept
        if used is None:
            raise OptionError(f"{path} was saved with a callable augmentation; pass it again as augment=….")
        if not callable(used) and used not in AUGMENTATIONS and augment is None:
            raise StateError(f"{path}: names an augmentation {used!r} that there is not; the file is damaged.")
        buffer = cls.__new__(cls)
        buffer._set(images, labels, used, renew, seed)
        if used == kept:
            buffer._fingerprint = fingerprint
        return buffer


def _channels_first(images: Tensor | np.ndarray[Any, Any]) -> Tensor:
    if isinstance(images, np.ndarray):
        if images.ndim == 4 and images.shape[-1] in (1, 3, 4) and images.dtype == np.uint8:
            images = images.transpose(0, 3, 1, 2)
        images = torch.from_numpy(np.array(images, order="C"))
    if not isinstance(images, Tensor) or images.dim() < 2:
        what = f"shape {tuple(images.shape)}" if isinstance(images, Tensor) else type(images).__name__
        raise OptionError(f"images are {what}; needed is a tensor (N, …) of what net takes.")
    return images


def _stored(images: Tensor) -> Tensor:
    """As uint8 where nothing is lost by it, else as given."""
    if images.dtype == torch.uint8:
        return images
    if not images.is_floating_point():
        raise OptionError(f"images are {images.dtype}; needed is uint8, or floating point as net takes it.")
    images = images.detach()
    if not bool(torch.isfinite(images).all()):
        raise OptionError("images hold NaN or infinite values; drop or repair them.")
    precise = images.to(torch.promote_types(images.dtype, torch.float32))
    whole = (precise * 255).round()
    # One unit in the last place is the difference between x / 255 and x * (1 / 255).
    near = (whole / 255 - precise).abs() <= torch.finfo(precise.dtype).eps * precise.abs()
    if bool((whole >= 0).all() and (whole <= 255).all() and near.all()) and images.dtype == precise.dtype:
        return whole.to(torch.uint8)
    return images.clone()


def _floats(images: Tensor, dtype: torch.dtype) -> Tensor:
    return images.to(dtype).div_(255) if images.dtype == torch.uint8 else images


def _whole(labels: Tensor | Sequence[int] | np.ndarray[Any, Any], count: int) -> Tensor:
    try:
        found = torch.as_tensor(labels)
    except (TypeError, ValueError, RuntimeError) as wrong:
        raise OptionError(
            f"labels cannot be read as numbers ({wrong}); needed is a class number for each image."
        ) from wrong
    if found.is_floating_point() or found.is_complex() or found.shape != (count,):
        raise OptionError(
            f"labels have shape {tuple(found.shape)} and type {found.dtype} for {count} images; needed are whole "
            f"numbers of shape ({count},), or None."
        )
    return found.to(torch.int64)


def _count(size: float, available: int) -> int:
    if isinstance(size, bool) or not isinstance(size, int | float | np.integer | np.floating):
        raise OptionError(f"size={size!r}: give a fraction such as 0.1 or a count such as 1000.")
    fraction = isinstance(size, float | np.floating)
    if fraction and not 0 < size <= 1:
        raise OptionError(f"size={size!r}: a fraction must be above 0 and at most 1; a count is a whole number.")
    total = max(1, round(float(size) * available)) if fraction else int(size)
    if not 1 <= total <= available:
        raise OptionError(f"size={size!r}: the dataset has {available} samples; ask for 1 to {available}.")
    return total


def _check_dataset(dataset: Any) -> None:
    if not (hasattr(dataset, "__len__") and hasattr(dataset, "__getitem__")) or isinstance(dataset, dict | str):
        raise OptionError(
            f"dataset is {type(dataset).__name__}; needed is something with a length and numbered items, (image, "
            "label) or images alone. A DataLoader has its .dataset; what only iterates, put into a list."
        )


def _tracked(sequence: Sequence[Any], description: str, progress: bool | Track) -> Iterable[Any]:
    if isinstance(progress, bool):
        return track(sequence, description, disable=not progress)
    return progress(sequence, description=description)


def _labels(dataset: Dataset, progress: bool | Track) -> np.ndarray[Any, Any] | None:
    """Labels without decoding images where the dataset offers them, else item by item."""
    offered = _offered_labels(dataset.dataset if isinstance(dataset, Subset) else dataset)
    if offered is not None:
        return np.asarray(offered[dataset.indices] if isinstance(dataset, Subset) else offered)
    if len(dataset) == 0 or not isinstance(dataset[0], tuple | list) or len(dataset[0]) < 2:
        return None
    return _integers([dataset[i][1] for i in _tracked(range(len(dataset)), "reading labels", progress)])


def _offered_labels(dataset: Any) -> np.ndarray[Any, Any] | None:
    tensors = getattr(dataset, "tensors", None)
    candidates = [getattr(dataset, "targets", None), getattr(dataset, "labels", None)]
    candidates.append(tensors[1] if tensors is not None and len(tensors) > 1 else None)
    for labels in candidates:
        if labels is not None and len(labels) == len(dataset):
            return _integers(labels)
    return None


def _integers(labels: Any) -> np.ndarray[Any, Any]:
    found = np.asarray(labels)
    if found.dtype.kind not in "iub" or found.ndim != 1:
        first = found.flat[0] if found.size else None
        raise OptionError(
            f"labels such as {first!r} (shape {found.shape}) are no class numbers; needed is one whole number for each "
            "image. For names, number them; for one-hot rows, take .argmax(1)."
        )
    return found.astype(np.int64)


def _gather(dataset: Dataset, chosen: np.ndarray[Any, Any], progress: bool | Track) -> Tensor:
    if isinstance(dataset, ArrayDataset | FileDataset):
        return _channels_first(dataset.read(chosen))
    images = [_image(dataset[int(i)]) for i in _tracked(chosen.tolist(), "reading source images", progress)]
    shapes = sorted({tuple(image.shape) for image in images})
    if len(shapes) > 1:
        raise OptionError(f"the dataset's images differ in shape, such as {shapes[0]} and {shapes[1]}; resize them.")
    return torch.stack(images)


def _image(item: Any) -> Tensor:
    if isinstance(item, dict):
        raise OptionError(
            f"the dataset's items are dicts with {sorted(map(str, item))}; needed are (image, label) pairs, as in "
            "[(item['image'], item['label']) for item in dataset]."
        )
    image = item[0] if isinstance(item, tuple | list) else item
    if isinstance(image, Tensor):
        return image
    if getattr(image, "mode", None) == "P":  # a PIL image whose pixels are numbers of colours
        image = image.convert("RGB")
    array = np.asarray(image)
    if array.dtype.kind not in "uif" or array.ndim < 1:
        raise OptionError(f"an item's image is {type(image).__name__}; needed is a tensor, an array or a PIL image.")
    if array.dtype == np.uint8 and array.ndim == 2:
        array = array[..., None]
    return _channels_first(array[None])[0]


def _confidence(dataset: Dataset, model: nn.Module, progress: bool | Track) -> np.ndarray[Any, Any]:
    network = copy_sharing_parameters(model)
    device = next((p.device for p in network.parameters()), torch.device("cpu"))
    found = []
    with torch.inference_mode():
        for start in _tracked(range(0, len(dataset), 200), "asking the source model", progress):
            index = np.arange(start, min(start + 200, len(dataset)))
            images = _floats(_stored(_gather(dataset, index, progress=False)).to(device), torch.float32)
            found.append(logits_of(network(images), len(images)).softmax(-1).amax(-1).cpu())
    return np.asarray(torch.cat(found).double())


def _balanced(
    order: np.ndarray[Any, Any], groups: np.ndarray[Any, Any], total: int, generator: np.random.Generator
) -> np.ndarray[Any, Any]:
    """The first ``total`` of ``order``, equally many of every group, groups taking turns."""
    classes = generator.permutation(np.unique(groups))
    members = [order[groups[order] == label] for label in classes]
    # The k-th member of each class comes in round k; short classes drop out of the later rounds.
    rounds = np.concatenate([np.arange(len(m)) for m in members])
    turns = np.concatenate([np.full(len(m), turn) for turn, m in enumerate(members)])
    flat = np.concatenate(members)
    chosen: np.ndarray[Any, Any] = flat[np.lexsort((turns, rounds))][:total]
    return chosen


def _qualified(function: object) -> str:
    return f"{getattr(function, '__module__', '')}.{getattr(function, '__qualname__', type(function).__qualname__)}"
