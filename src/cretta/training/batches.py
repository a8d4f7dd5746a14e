"""The batches of a training: which images, and how they are augmented."""

from __future__ import annotations

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from cretta.data import ArrayDataset, ImageDataset
from cretta.training.augmix import augmix
from cretta.training.recipe import Recipe


class TrainingBatches:
    """Images to train on, without those that are held out. A batch depends on the recipe and its step only."""

    def __init__(self, dataset: ImageDataset, recipe: Recipe) -> None:
        order = np.random.default_rng(recipe.seed).permutation(len(dataset))
        held_out, used = np.sort(order[: recipe.holdout]), np.sort(order[recipe.holdout :])
        self.images = torch.from_numpy(dataset.read(used)).permute(0, 3, 1, 2)
        self.labels = torch.from_numpy(dataset.labels[used])
        self.held_out = ArrayDataset("held out", dataset.read(held_out), dataset.labels[held_out], dataset.classes)
        self.side = int(self.images.shape[2])
        self._recipe = recipe
        self._order: tuple[int, Tensor] = (-1, torch.empty(0))

    def __len__(self) -> int:
        return len(self.images)

    def indices(self, step: int) -> Tensor:
        """Return the indices of the batch of a step: permutation after permutation, cut where a batch is full."""
        chosen: list[Tensor] = []
        position, missing = step * self._recipe.batch_size, self._recipe.batch_size
        while missing:
            epoch, start = divmod(position, len(self))
            if self._order[0] != epoch:
                self._order = (epoch, torch.randperm(len(self), generator=self._generator(2 * epoch)))
            piece = self._order[1][start : start + missing]
            chosen.append(piece)
            position, missing = position + len(piece), missing - len(piece)
        return torch.cat(chosen)

    def views(self, step: int, side: int) -> list[Tensor]:
        """Return the augmented batch of a step, and with the Jensen-Shannon loss two AugMix versions beside it."""
        recipe, generator = self._recipe, self._generator(2 * step + 1)
        padding = min(self.side - 1, round(recipe.padding * self.side / 32))
        images = flip_and_crop(self.images[self.indices(step)], generator, padding)
        views = [images.float().div_(255)]
        if recipe.jsd:
            views += [augmix(images, generator, severity=recipe.severity) for _ in range(2)]
        else:
            changed = torch.rand(len(images), generator=generator) < recipe.augmix
            if bool(changed.any()):
                views[0][changed] = augmix(images[changed], generator, severity=recipe.severity)
        if side != self.side:
            views = [F.interpolate(view, (side, side), mode="bilinear", antialias=True) for view in views]
        return views

    def _generator(self, number: int) -> torch.Generator:
        """Return random numbers that depend on the seed and ``number`` only: a resumed run draws the same."""
        return torch.Generator().manual_seed(self._recipe.seed * 2**32 + number)


def flip_and_crop(images: Tensor, generator: torch.Generator, padding: int) -> Tensor:
    """Mirror half of the images, and shift each by up to ``padding`` pixels with reflected borders."""
    count, _, height, width = images.shape
    moves = torch.randint(-padding, padding + 1, (2, count), generator=generator)
    mirrored = torch.rand(count, 1, generator=generator) < 0.5
    rows = _reflected(torch.arange(height) + moves[0].view(-1, 1), height)
    columns = _reflected(torch.arange(width) + moves[1].view(-1, 1), width)
    columns = torch.where(mirrored, columns.flip(1), columns)
    sample = torch.arange(count).view(-1, 1, 1)
    return images.permute(0, 2, 3, 1)[sample, rows.unsqueeze(2), columns.unsqueeze(1)].permute(0, 3, 1, 2)


def _reflected(positions: Tensor, size: int) -> Tensor:
    positions = positions.abs()
    return torch.where(positions >= size, 2 * (size - 1) - positions, positions)
