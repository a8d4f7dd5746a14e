"""Whether a dataset is whole."""

import hashlib
import tarfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import IO, Literal

import numpy as np

from cretta.data.corruptions import CORRUPTIONS
from cretta.data.folder import some
from cretta.data.pressed import FAULTS
from cretta.errors import CrettaError

from .records import Entry, Part

Verdict = Literal["whole", "incomplete", "broken"]


@dataclass(frozen=True)
class Finding:
    """What a check found: in which part, and whether that is whole, incomplete (readable, but not all) or broken."""

    part: str
    said: str
    verdict: Verdict = "whole"
    images: int = 0


def check(wanted: Entry, path: Path, progress: Callable[[str], None] = lambda part: None) -> Iterator[Finding]:
    """Reads a dataset part by part: counts, labels, first and last image, and the MD5 of files where it is known."""
    for part in wanted.parts(path):
        progress(part.name)
        try:
            yield _counted(part)
        except CrettaError as error:
            lost = part.name in CORRUPTIONS and not any((path / f"{part.name}{end}").exists() for end in ("", ".npy"))
            yield Finding(part.name, *(("is not there", "incomplete") if lost else (str(error), "broken")))
    if wanted.files:
        progress("MD5")
        try:
            yield from _summed(wanted, path)
        except FAULTS as error:
            yield Finding("MD5", f"{path} cannot be read ({error}): get it anew.", "broken")


def md5_of(file: IO[bytes], progress: Callable[[int], None] = lambda done: None) -> str:
    """The MD5 of what is left to read, which is how these datasets are published; it guards against damage only."""
    found = hashlib.md5(usedforsecurity=False)
    done = 0
    while chunk := file.read(1 << 20):
        found.update(chunk)
        done += len(chunk)
        progress(done)
    return found.hexdigest()


def spaced(number: int) -> str:
    """A number with its thousands apart.

    >>> spaced(50000)
    '50 000'
    """
    return f"{number:,}".replace(",", " ")


def _counted(part: Part) -> Finding:
    sets = [read() for read in part.sets]
    total = sum(map(len, sets))
    said = f"{spaced(total)} images"
    for each in sets:
        for index in {0, len(each) - 1}:
            each[index]
    if len(sets) > 1:
        said += f" in {len(sets)} severities"
    counts = [np.bincount(each.labels, minlength=part.classes) for each in sets]
    if any(len(count) != part.classes for count in counts):
        return Finding(part.name, f"{said} of {max(map(len, counts))} classes, not {part.classes}", "broken")
    wanted = part.images * len(sets)
    if total != wanted:
        return Finding(part.name, f"{said}, not {spaced(wanted)}", "incomplete", total)
    if any(len(each) != part.images for each in sets):
        return Finding(part.name, f"{said}, not {spaced(part.images)} in each", "incomplete", total)
    if part.each is not None:
        uneven = [str(label) for label in range(part.classes) if any(count[label] != part.each for count in counts)]
        if uneven:
            lacking = f"{said}, but class {some(uneven)} does not have {spaced(part.each)}"
            return Finding(part.name, lacking, "broken")
        said += f", {spaced(part.each)} a class"
    return Finding(part.name, said, images=total)


def _summed(wanted: Entry, path: Path) -> Iterator[Finding]:
    found = {name: md5_of(file) for name, file in _contents(wanted, path)}
    wrong = sorted(name for name, md5 in found.items() if md5 != wanted.files[name])
    if found and not wrong:
        yield Finding("MD5", f"{len(found)} files as published")
    # Who makes such images anew gets other pixels, for the corruptions draw random numbers; but for these files.
    elif wrong and "labels.npy" in wanted.files and not set(found) - set(wrong) - {"labels.npy", "pixelate.npy"}:
        yield Finding("MD5", "not as published, so made, not downloaded")
    elif wrong:
        first = f"the first has {found[wrong[0]]}, not {wanted.files[wrong[0]]}"
        yield Finding("MD5", f"{some(wrong)}: not as published ({first}); get {wanted.name} anew.", "broken")


def _contents(wanted: Entry, path: Path) -> Iterator[tuple[str, IO[bytes]]]:
    """The files whose MD5 is known, of a folder or of a tar archive."""
    if path.is_dir():
        for name in wanted.files:
            if (path / name).is_file():
                with (path / name).open("rb") as file:
                    yield name, file
        return
    with tarfile.open(path, "r|*") as members:
        for member in members:
            name = PurePosixPath(member.name).name
            opened = members.extractfile(member) if name in wanted.files and member.isreg() else None
            if opened is not None:
                yield name, opened
