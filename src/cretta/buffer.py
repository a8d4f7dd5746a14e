"""SourceBuffer: a small class-balanced set of source images, used in order."""

from __future__ import annotations

import copy
import os
import warnings
from collections.abc import Sequence
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor, nn

from cretta import augment as augmentations
from cretta import sampling
from cretta.augment import AUGMENTATIONS, Augmentation
from cretta.distributed import Shard
from cretta.errors import BatchError, OptionError, StateError
from cretta.storage import tensorfile

KIND = "source buffer"
SELECT = ("random", "confident", "uncertain")
BLOCK = 64
"""Images are augmented in blocks of this size, so that the result does not depend on the order of reading."""


class SourceBuffer:
    """Source images for methods that compare with them.

    ``images`` are what the network takes: (N, C, H, W) tensors, or uint8 (N, H, W, C) arrays. Bytes reach the network
    as floats in [0, 1]. Values k/255 are stored as bytes without loss, others as they are. ``augment`` is "none",
    "rotate", "cifar100" or a callable on float batches; each image is augmented once and the result is cached. Which
    images come next is stored in the adapter that reads them: one buffer may serve many adapters. Labels that are all
    -1, as those of a folder without class folders, are not known: ``labels`` is None then.

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
        seed: int = 0,
    ) -> None:
        stored = sampling.compact(sampling.channels_first(images))
        if len(stored) == 0:
            raise OptionError("expected at least one image in the buffer, got none.")
        numbers = None if labels is None else sampling.class_numbers(labels)
        if numbers is not None and len(numbers) != len(stored):
            raise OptionError(f"expected one class number per image, got {len(numbers)} for {len(stored)} images.")
        self._set(stored, None if numbers is None else torch.from_numpy(numbers), augment, seed)

    def _set(self, images: Tensor, labels: Tensor | None, augment: str | Augmentation, seed: int) -> None:
        unknown = 0 if labels is None else int((labels < 0).sum())
        if 0 < unknown < len(images):
            raise OptionError(
                f"expected class numbers from 0, or -1 for all images, got negative labels for {unknown} of "
                f"{len(images)} images; label these images or drop them."
            )
        self.images = images
        self.labels = None if unknown else labels
        self.seed = seed
        self._set_augment(augment)

    def _set_augment(self, augment: str | Augmentation) -> None:
        self.augment = augment
        if callable(augment):
            self._augmentation: Augmentation | None = augment
        elif augment != "none" and self.images.dim() != 4:
            raise OptionError(
                f"expected images (N, C, H, W) for augment={augment!r}, got shape {tuple(self.images.shape)}. Pass "
                "augment='none' or a callable."
            )
        else:
            self._augmentation = augmentations.by_name(augment, self.images.shape[-2], self.images.shape[-1])
        self._fingerprint: str | None = None
        self._cache: Tensor | None = None
        self._cached_blocks: set[int] = set()

    def __getstate__(self) -> dict[str, Any]:
        """Return what a pickle or a copy needs; augmented images are computed again, and are the same."""
        return {"images": self.images, "labels": self.labels, "augment": self.augment, "seed": self.seed}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self._set(**state)

    def with_augment(self, augment: str | Augmentation) -> Self:
        """Return a buffer of the same images with another augmentation."""
        if augment == self.augment:
            return self
        other = copy.copy(self)
        other._set_augment(augment)
        return other

    @classmethod
    def sample(
        cls,
        dataset: sampling.Dataset,
        size: float = 0.1,
        select: str = "random",
        seed: int = 0,
        *,
        model: nn.Module | None = None,
        confidence: sampling.Array | None = None,
        augment: str | Augmentation = "rotate",
        progress: sampling.Progress | None = None,
    ) -> Self:
        """Draw a buffer, balanced over the classes, from ``dataset``.

        ``size`` is a fraction (0.1) or a count (1000). ``select`` takes samples at random, or those of each class
        that the source ``model`` is most or least confident of; if its ``confidence`` in each image is given, nothing
        is predicted. The order mixes the classes evenly, so that every batch in it is nearly balanced. Without labels,
        samples are drawn from all classes together.
        ``progress(description, done, total)`` is called after each item that is read.
        """
        if select not in SELECT:
            raise OptionError(f"select={select!r}: expected one of {', '.join(map(repr, SELECT))}.")
        if select != "random" and model is None and confidence is None:
            raise OptionError(f"select={select!r} needs the predictions of the source model; pass model=net.")
        sampling.check_dataset(dataset)
        if confidence is not None and confidence.shape != (len(dataset),):
            raise OptionError(f"confidence: expected {len(dataset)} values, one per image, got {confidence.shape}.")
        if not len(dataset):
            raise OptionError("the dataset is empty (0 samples); expected source images.")
        total = _count(size, len(dataset))
        generator = np.random.default_rng(seed)
        labels = sampling.read_labels(dataset, progress)
        order = generator.permutation(len(dataset))
        if select != "random":
            if confidence is None:
                assert model is not None
                confidence = sampling.confidence(dataset, model, progress)
            order = order[np.argsort(confidence[order] * (-1 if select == "confident" else 1), kind="stable")]
        groups = np.zeros(len(dataset), dtype=np.int64) if labels is None else labels
        chosen = sampling.balanced(order, groups, total, generator)
        drawn, classes = (len(np.unique(labels_of)) for labels_of in (groups[chosen], groups))
        if drawn < classes:
            warnings.warn(
                f"the buffer has images of {drawn} of {classes} classes; a larger size has more.", stacklevel=2
            )
        images = sampling.read_images(dataset, chosen, progress)
        return cls(images, None if labels is None else labels[chosen], augment, seed=seed)

    def __len__(self) -> int:
        return len(self.images)

    def __repr__(self) -> str:
        return f"SourceBuffer({len(self)} images {tuple(self.images.shape[1:])}, augment={self._augment_name!r})"

    @property
    def _augment_name(self) -> str:
        if isinstance(self.augment, str):
            return self.augment
        qualified = getattr(self.augment, "__qualname__", type(self.augment).__qualname__)
        return f"{getattr(self.augment, '__module__', '')}.{qualified}"

    def batch(self, start: int, count: int, *, like: Tensor | None = None) -> Tensor:
        """Return ``count`` images from ``start`` on, cycling; with the device, dtype and memory format of ``like``."""
        if isinstance(like, Shard):
            rows = range(start, start + count)[like.group.part(count)]
            images = self.batch(rows.start, len(rows), like=like.rows)
            return Shard.of(images, like.group.counts(count), like.group)
        index = torch.arange(start, start + count) % len(self)
        device = like.device if like is not None else self.images.device
        dtype = torch.float64 if like is not None and like.dtype == torch.float64 else torch.float32
        if self._augmentation is None:
            images = sampling.as_floats(self.images[index].to(device), dtype)
        else:
            with augmentations.LOCK:
                images = sampling.as_floats(self._augmented(index).to(device), dtype)
        if like is None:
            return images
        if images.shape[1:] != like.shape[1:]:
            raise BatchError(
                f"expected buffer and batch to hold samples of one shape, got {tuple(images.shape[1:])} in the buffer "
                f"and {tuple(like.shape[1:])} in the batch; build the buffer from what net takes."
            )
        channels_last = like.dim() == 4 and like.is_contiguous(memory_format=torch.channels_last)
        return images.to(
            like.dtype if like.is_floating_point() else images.dtype,
            memory_format=torch.channels_last if channels_last else torch.contiguous_format,
        )

    def _augmented(self, index: Tensor) -> Tensor:
        assert self._augmentation is not None
        if self._cache is None:
            # A callable may return values between, or outside of, the 256 levels.
            levels = isinstance(self.augment, str) and self.images.dtype == torch.uint8
            dtype = torch.float32 if self.images.dtype == torch.uint8 and not levels else self.images.dtype
            with torch.inference_mode(False):
                self._cache = torch.empty_like(self.images, dtype=dtype)
        for block in {i // BLOCK for i in index.tolist()} - self._cached_blocks:
            window = slice(block * BLOCK, (block + 1) * BLOCK)
            images = sampling.as_floats(self.images[window].clone(), torch.float32)
            images = augmentations.apply(self._augmentation, images, self.seed, 0, block)
            if self._cache.dtype == torch.uint8:
                images = images.mul(255).round().clamp(0, 255)
            self._cache[window] = images.to(self._cache.dtype)
            self._cached_blocks.add(block)
        return self._cache[index]

    @property
    def fingerprint(self) -> str:
        """SHA-256 of images, labels, augmentation and seed."""
        if self._fingerprint is None:
            labels = [] if self.labels is None else [self.labels]
            self._fingerprint = tensorfile.fingerprint([self.images, *labels, f"{self._augment_name} seed={self.seed}"])
        return self._fingerprint

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write images, labels and settings to a safetensors file."""
        tensors = {"images": self.images} | ({} if self.labels is None else {"labels": self.labels})
        augment = self.augment if isinstance(self.augment, str) else None
        facts = {"kind": KIND, "augment": augment, "seed": self.seed}
        tensorfile.write(path, tensors, {**facts, "fingerprint": self.fingerprint})

    @classmethod
    def load(
        cls, path: str | os.PathLike[str], *, augment: str | Augmentation | None = None, verify: bool = True
    ) -> Self:
        """Map a saved buffer into memory; images are read from disk when they are used.

        ``verify`` reads the file once to compare it with its checksum. A callable augmentation is not in the
        file and must be passed again.
        """
        images_from = path if os.path.isdir(path) else "FOLDER"
        remedy = f"Make one: cretta buffer build {images_from} --output source.safetensors"
        tensors, facts = tensorfile.read(path, KIND, verify=verify, remedy=remedy)
        try:
            images, labels, seed = tensors["images"], tensors.get("labels"), int(facts["seed"])
            saved_augment, fingerprint = facts["augment"], str(facts["fingerprint"])
        except (KeyError, TypeError, ValueError) as error:
            raise StateError(f"{path}: lacks an entry ({error}); the file is damaged, save it again.") from error
        used = augment if augment is not None else saved_augment
        if used is None:
            raise OptionError(f"{path} was saved with a callable augmentation; pass it again as augment=….")
        if not callable(used) and used not in AUGMENTATIONS and augment is None:
            raise StateError(f"{path}: names an unknown augmentation {used!r}; the file is damaged, save it again.")
        buffer = cls.__new__(cls)
        buffer._set(images, labels, used, seed)
        if used == saved_augment and buffer.labels is labels:
            buffer._fingerprint = fingerprint
        return buffer


def _count(size: float, available: int) -> int:
    if isinstance(size, bool) or not isinstance(size, int | float | np.integer | np.floating):
        raise OptionError(f"size={size!r}: expected a fraction such as 0.1 or a count such as 1000.")
    fraction = isinstance(size, float | np.floating)
    if fraction and not 0 < size <= 1:
        raise OptionError(f"size={size!r}: expected a fraction above 0 and at most 1, or an integer count.")
    total = max(1, round(float(size) * available)) if fraction else int(size)
    if not 1 <= total <= available:
        raise OptionError(f"size={size!r}: expected 1 to {available}; the dataset has {available} samples.")
    return total
