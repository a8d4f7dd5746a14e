"""Fingerprints of datasets: whether one is still the one that a result was computed on."""

from __future__ import annotations

import hashlib

from cretta.data import ArrayDataset, FileDataset, ImageDataset
from cretta.data.corrupted import CorruptedDataset

PIECE = 4096
"""Images of an array hashed at once."""


def fingerprint(dataset: ImageDataset) -> str:
    """Return a hash of labels and classes, all pixels of arrays, names and sizes of files, and the corruption."""
    digest = hashlib.sha256()
    if isinstance(dataset, CorruptedDataset):
        described = (dataset.corruption, dataset.severity, dataset.seed, dataset.parameters)
        return hashlib.sha256(repr((*described, fingerprint(dataset.source))).encode()).hexdigest()[:16]
    digest.update(f"{dataset.name} {len(dataset)} {dataset.classes}".encode())
    digest.update(dataset.labels.tobytes())
    if isinstance(dataset, ArrayDataset):
        for start in range(0, len(dataset), PIECE):
            digest.update(dataset.images[start : start + PIECE].tobytes())
    elif isinstance(dataset, FileDataset):
        for file in dataset.files:
            digest.update(f"{file.parent.name}/{file.name} {file.stat().st_size}".encode())
        digest.update(str(dataset.size).encode())
    else:
        for index in (0, len(dataset) // 2, len(dataset) - 1):
            digest.update(dataset[index][0].tobytes())
    return digest.hexdigest()[:16]
