"""Published files of a dataset: where they come from, which folder they make, and where that is on this machine."""

import os
import shlex
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from importlib import resources
from pathlib import Path
from typing import Any

from cretta.data.dataset import ImageDataset
from cretta.errors import StateError

FACTS: dict[str, dict[str, dict[str, Any]]] = tomllib.loads(
    (resources.files("cretta.data") / "datasets.toml").read_text("utf-8")
)
"""The published facts of datasets and releases."""
ENVIRONMENT = "CRETTA_DATA"


@dataclass(frozen=True)
class Archive:
    """A published file; ``folders`` lists what it holds, where a release has several archives."""

    file: str
    md5: str
    size: int
    urls: tuple[str, ...] = ()
    folders: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Release:
    """Files that are published together: the clean images of a dataset, or their corrupted versions."""

    name: str
    contents: str
    folder: str
    """The folder that `cretta data get` makes below the data root."""
    other_folders: tuple[str, ...] = ()
    """Other folders below the data root that are read as well."""
    archives: tuple[Archive, ...] = ()
    other_archives: tuple[str, ...] = ()
    """Names of published archives with another layout, which are read as well."""
    markers: tuple[tuple[str, ...], ...]
    """Patterns of files or folders: those of one group are all in a folder that holds the release or a part of it."""
    open: Callable[[Path, str, int | None], ImageDataset]
    """Open a part, or a domain such as "fog/5" of a corrupted release, scaled to a size where one is set."""
    classes: int
    images: Mapping[str, int]
    """Images in each part; of a corrupted release, images of each corruption at one severity."""
    corrupted: bool = False
    balanced: bool = True
    """Whether all classes have the same number of images."""
    file_md5: Mapping[str, str] = field(default_factory=dict)
    """MD5 sums of files in the folder."""
    example: str
    """A call that reads it."""
    page: str
    license: str
    unpacked_size: int
    """Approximate bytes on disk, blocks of the file system included."""
    manual: str = ""
    """How to get the files, where they cannot be downloaded without an account."""
    npm: str = ""
    """An npm package with the same images, in a layout that is read as well."""

    @property
    def download_size(self) -> int:
        """Bytes to download."""
        return sum(archive.size for archive in self.archives)

    def is_present(self, folder: Path) -> bool:
        """Return whether a folder holds the release, or a part of it."""
        return any(all(any(folder.glob(pattern)) for pattern in group) for group in self.markers)

    def path(self, root: str | Path | None = None) -> Path:
        """Return where the release is below the data root; raise a StateError that says how to get it if it is not."""
        home = data_root(root)
        path = self.find(home)
        if path is None:
            expected = " or ".join(str(home / folder) for folder in (self.folder, *self.other_folders))
            raise StateError(f"{self.name} is not there: expected {expected}. Get it with: {self.get_command(root)}")
        return path

    def find(self, home: Path) -> Path | None:
        """Return the folder below ``home``, or None."""
        folders = (home / folder for folder in (self.folder, *self.other_folders))
        return next((folder for folder in folders if folder.is_dir() and self.is_present(folder)), None)

    def archives_in(self, folder: Path) -> list[Path]:
        """Return the published archives that are in ``folder``."""
        names = (*(archive.file for archive in self.archives), *self.other_archives)
        return [folder / name for name in names if (folder / name).is_file()]

    def missing_archives(self, path: Path | None) -> tuple[Archive, ...]:
        """Return the archives that still have to be downloaded, where ``path`` holds the release or a part of it."""
        if path is None:
            return self.archives
        return tuple(a for a in self.archives if not all((path / folder).is_dir() for folder in a.folders))

    def get_command(self, root: str | Path | None = None) -> str:
        """Return the command that gets the release."""
        source = " --from PATH" if self.manual else ""
        below = f" --root {shlex.quote(str(root))}" if root else ""
        return f"cretta data get {self.name}{source}{below}"


def data_root(root: str | Path | None = None) -> Path:
    """Return the folder of all datasets: ``root``, else the environment variable CRETTA_DATA, else ~/.cache/cretta."""
    return Path(root or os.environ.get(ENVIRONMENT) or Path.home() / ".cache" / "cretta").expanduser()
