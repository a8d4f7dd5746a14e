"""Augmentations of source images, by name; kornia's, with random numbers from their own seed."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Callable

import torch
from torch import Tensor

from cretta.errors import OptionError
from cretta.options import known

Augmentation = Callable[[Tensor], Tensor]
"""Takes and returns a float batch (B, C, H, W)."""

AUGMENTATIONS = ("none", "rotate", "cifar100")
LOCK = threading.RLock()
"""Held while the global generator is used or a buffer's cache is filled: a buffer may serve several threads."""
ROTATION = 15.0
"""Degrees. The paper names its transformations and their probabilities, not their strengths."""


def by_name(name: str, height: int, width: int) -> Augmentation | None:
    """Return the augmentation called ``name`` for images of this size; None for 'none'."""
    if known("augmentation", name, AUGMENTATIONS) == "none":
        return None
    from kornia import augmentation as K

    if name == "rotate":
        rotate: Augmentation = K.RandomRotation(ROTATION, p=1.0)
        return rotate
    sequence = K.ImageSequential(
        K.RandomHorizontalFlip(p=0.2),
        K.RandomRotation(ROTATION, p=0.2),
        K.RandomAffine(degrees=0.0, translate=(0.1, 0.1), scale=(0.9, 1.1), p=0.2),
        K.RandomPerspective(distortion_scale=0.2, p=0.2),
    )
    crop = K.RandomCrop((height, width), padding=max(1, min(height, width) // 8))

    def all_five(images: Tensor) -> Tensor:
        images = sequence(images)
        # kornia's RandomCrop would draw once per batch, not once per image.
        cropped = torch.rand(len(images)).to(images.device) < 0.2
        return torch.where(cropped.view(-1, 1, 1, 1), crop(images), images)

    return all_five


def apply(augmentation: Augmentation, images: Tensor, *seed: int) -> Tensor:
    """Augment with random numbers that depend on ``seed`` alone; the global generator stays unchanged."""
    digest = hashlib.sha256(repr(seed).encode()).digest()
    with LOCK:
        state = torch.default_generator.get_state()
        try:
            # kornia draws from the global CPU generator. torch.manual_seed would also touch every GPU's.
            torch.default_generator.manual_seed(int.from_bytes(digest[:7], "big"))
            with torch.no_grad():
                augmented = augmentation(images)
        finally:
            torch.default_generator.set_state(state)
    if not isinstance(augmented, Tensor) or augmented.shape != images.shape:
        got = tuple(augmented.shape) if isinstance(augmented, Tensor) else type(augmented).__name__
        raise OptionError(f"expected the augmentation to return a batch of shape {tuple(images.shape)}, got {got}.")
    return augmented
