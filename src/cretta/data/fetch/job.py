"""A dataset to be got: where to, who is told of it, and its place on the disk."""

import contextlib
import os
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from rich.filesize import decimal

from cretta.data.check import md5_of
from cretta.data.releases import Release
from cretta.errors import StateError

Progress = Callable[[str, int, int | None], None]
"""Is told what is done ("CIFAR-10-C.tar", "unpacking CIFAR-10-C.tar"), how many bytes of it, and of how many, if known.

It is called from several threads.
"""
Say = Callable[[str], None]


@dataclass(frozen=True)
class Job:
    """A dataset that is wanted below ``home``."""

    wanted: Release
    home: Path
    progress: Progress
    say: Say

    @contextlib.contextmanager
    def workplace(self) -> Iterator[Path]:
        """An empty folder that is gone in the end; what a killed process left goes before."""
        work = self.home / f".{self.wanted.folder}.new"
        if work.exists():
            shutil.rmtree(work)
        work.mkdir()
        try:
            yield work
        finally:
            shutil.rmtree(work)

    def clear(self, target: Path) -> None:
        """Makes sure that nothing is at ``target``; an empty folder or a link to nowhere may go."""
        if target.is_symlink() and not target.exists():
            target.unlink()
        elif target.is_dir() and not target.is_symlink() and not any(target.iterdir()):
            target.rmdir()
        elif target.exists():
            raise StateError(f"{target} is there, but is not {self.wanted.name} whole: move it away, then try again.")


def move(made: Path, target: Path) -> None:
    """Moves a folder to its place or, where that has a part of the dataset, what is not there yet into it."""
    if not target.exists():
        os.replace(made, target)
        return
    for each in sorted(made.iterdir()):
        if not (target / each.name).exists():
            os.replace(each, target / each.name)


def check_space(home: Path, download: int, unpacked: int) -> None:
    """Raises where the disk has not room for both."""
    free = shutil.disk_usage(home).free
    if free < download + unpacked:
        needed = f"{decimal(download)} to download and {decimal(unpacked)}" if download else decimal(unpacked)
        raise StateError(
            f"{home} has {decimal(free)} free, but needed are about {needed} for the unpacked images: "
            "free some, or give another folder as root."
        )


def sum_of(file: Path, name: str, progress: Progress) -> str:
    """A file's MD5."""
    size = file.stat().st_size
    with file.open("rb") as opened:
        return md5_of(opened, lambda done: progress(f"checking {name}", done, size))
