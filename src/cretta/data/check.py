"""Whether a dataset on disk is complete and intact."""

import hashlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np

from cretta.data.corruptions import SEVERITIES, VALIDATION_CORRUPTIONS
from cretta.data.folder import some
from cretta.data.releases import Release
from cretta.errors import CrettaError

Verdict = Literal["complete", "incomplete", "damaged"]


@dataclass(frozen=True)
class Finding:
    """The result for one part of a release: complete, incomplete (readable, but images are missing) or damaged."""

    part: str
    message: str
    verdict: Verdict = "complete"
    images: int = 0


def check(release: Release, path: Path, progress: Callable[[str], None] = lambda part: None) -> Iterator[Finding]:
    """Read a release part by part: counts, labels, first and last image, and the MD5 of files where it is known."""

    def has(part: str) -> bool:
        return any((path / f"{part}{suffix}").exists() for suffix in ("", ".npy"))

    optional = [name for name in VALIDATION_CORRUPTIONS if release.corrupted and has(name)]
    for part in (*release.images, *optional):
        progress(part)
        if release.corrupted and not has(part):
            yield Finding(part, "is not there", "incomplete")
            continue
        try:
            yield _check_part(release, path, part)
        except CrettaError as error:
            yield Finding(part, str(error), "damaged")
    if release.file_md5:
        progress("MD5")
        try:
            yield from _check_files(release, path)
        except OSError as error:
            yield Finding("MD5", f"{path} cannot be read ({error}): download it again.", "damaged")


def md5_of(path: Path, progress: Callable[[int, int], None] = lambda done, size: None) -> str:
    """Return the MD5 of a file; the datasets are published with it. It guards against damage only."""
    digest, size = hashlib.md5(usedforsecurity=False), path.stat().st_size
    with path.open("rb") as file:
        while chunk := file.read(1 << 20):
            digest.update(chunk)
            progress(file.tell(), size)
    return digest.hexdigest()


def spaced(number: int) -> str:
    """Return a number with its thousands apart.

    >>> spaced(50000)
    '50 000'
    """
    return f"{number:,}".replace(",", " ")


def _check_part(release: Release, path: Path, part: str) -> Finding:
    domains = [f"{part}/{severity}" for severity in SEVERITIES] if release.corrupted else [part]
    datasets = [release.open(path, domain, None) for domain in domains]
    expected = release.images.get(part, max(release.images.values()))
    total = sum(map(len, datasets))
    message = f"{spaced(total)} images"
    for images in datasets:
        for index in {0, len(images) - 1}:
            images[index]
    if len(datasets) > 1:
        message += f" in {len(datasets)} severities"
    counts = [np.bincount(images.labels, minlength=release.classes) for images in datasets]
    if any(len(count) != release.classes for count in counts):
        return Finding(part, f"{message} of {max(map(len, counts))} classes, not {release.classes}", "damaged")
    if total != expected * len(datasets):
        return Finding(part, f"{message}, not {spaced(expected * len(datasets))}", "incomplete", total)
    if any(len(images) != expected for images in datasets):
        return Finding(part, f"{message}, not {spaced(expected)} in each", "incomplete", total)
    if release.balanced:
        per_class = expected // release.classes
        uneven = [str(label) for label in range(release.classes) if any(count[label] != per_class for count in counts)]
        if uneven:
            message += f", but class {some(uneven)} does not have {spaced(per_class)}"
            return Finding(part, message, "damaged")
        message += f", {spaced(per_class)} per class"
    return Finding(part, message, images=total)


def _check_files(release: Release, path: Path) -> Iterator[Finding]:
    sums = {name: md5_of(path / name) for name in release.file_md5 if (path / name).is_file()}
    different = sorted(name for name, md5 in sums.items() if md5 != release.file_md5[name])
    if sums and not different:
        yield Finding("MD5", f"{len(sums)} files as published")
    # Generated corruptions differ in pixels from the published ones, except labels and pixelate.
    elif different and release.corrupted and not set(sums) - set(different) - {"labels.npy", "pixelate.npy"}:
        yield Finding("MD5", "not as published: generated, not downloaded")
    elif different:
        first = f"the first has {sums[different[0]]}, not {release.file_md5[different[0]]}"
        message = f"{some(different)}: not as published ({first}); download {release.name} again."
        yield Finding("MD5", message, "damaged")
