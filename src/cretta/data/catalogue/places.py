"""Where datasets lie."""

import os
import shlex
from pathlib import Path

from cretta.data.folder import subfolders
from cretta.errors import StateError

from .entries import ENTRIES, entry
from .records import Archive, Entry

ENVIRONMENT = "CRETTA_DATA"
ENDINGS = (".tar.gz", ".tgz", ".tar.xz", ".tar.bz2", ".tar", ".zip")


def root_of(root: str | Path | None = None) -> Path:
    """The folder of all datasets: the one given, else what CRETTA_DATA names, else ~/.cache/cretta."""
    chosen = root or os.environ.get(ENVIRONMENT) or Path.home() / ".cache" / "cretta"
    return Path(chosen).expanduser()


def place(name: str | Entry, root: str | Path | None = None) -> Path:
    """Where a dataset lies, to be given to its reader; a StateError that says how to get it where it does not."""
    wanted = entry(name) if isinstance(name, str) else name
    home = root_of(root)
    found = find(wanted, home)
    if found is None:
        looked = " and ".join(str(home / folder) for folder in (wanted.folder, *wanted.also))
        raise StateError(f"{wanted.name} is not there: looked for {looked}. Get it with: {command(wanted, root)}")
    return found


def find(wanted: Entry, home: Path) -> Path | None:
    """The dataset's folder below ``home``, or its archive if the reader takes that, or None."""
    for folder in (wanted.folder, *wanted.also):
        if (home / folder).is_dir() and wanted.marks(home / folder):
            return home / folder
    archives = packed(wanted, home) if wanted.readable_packed else []
    return next((each for each in archives if each.suffix != ".zip"), None)  # readers take tar archives only


def packed(wanted: Entry, folder: Path) -> list[Path]:
    """Archives of the dataset in ``folder``: the published ones first, then the same in another packing."""
    published = [archive.file for archive in (*wanted.archives, *wanted.alternatives)]
    files = sorted(each for each in folder.iterdir() if each.is_file()) if folder.is_dir() else []
    exact = sorted((each for each in files if each.name in published), key=lambda each: published.index(each.name))
    stems = {_stem(name) for name in (*published, f"{wanted.folder}.tar")} - {_stem(each.name) for each in exact}
    return exact + [each for each in files if each not in exact and _stem(each.name) in stems]


def locate(wanted: Entry, folder: Path, depth: int = 3) -> Path | None:
    """The dataset's own folder in or below ``folder``, however deep an archive's maker has put it."""
    others = {each.folder for each in ENTRIES.values()} - {wanted.folder}
    level = [*(folder / each for each in (wanted.folder, *wanted.also)), folder]
    for _ in range(depth):
        level = [each for each in level if each.is_dir()]
        for each in level:
            if wanted.marks(each):
                return each
        level = [child for each in level for child in subfolders(each) if child.name not in others]
    return None


def missing(wanted: Entry, found: Path | None) -> tuple[Archive, ...]:
    """The archives that are still to be got, where ``found`` holds the dataset or a part of it."""
    if found is None:
        return wanted.archives
    return tuple(each for each in wanted.archives if not all((found / folder).is_dir() for folder in each.folders))


def command(wanted: Entry, root: str | Path | None = None) -> str:
    """What to type to get the dataset."""
    given = " --from PATH" if wanted.by_hand else ""
    below = f" --root {shlex.quote(str(root))}" if root else ""
    return f"cretta data get {wanted.name}{given}{below}"


def _stem(name: str) -> str | None:
    """An archive's name without the ending that tells the packing."""
    return next((name.lower().removesuffix(end) for end in ENDINGS if name.lower().endswith(end)), None)
