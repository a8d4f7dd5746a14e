"""What is known of a dataset: its archives, its folder, what it should hold."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from cretta.data.dataset import ImageDataset


@dataclass(frozen=True)
class Archive:
    """A published file: its name, MD5 and bytes, its addresses (the official one first), and what folders it holds.

    ``folders`` is given where a dataset comes in several archives, of which one may have a part.
    """

    file: str
    md5: str
    size: int
    addresses: tuple[str, ...] = ()
    folders: tuple[str, ...] = ()


@dataclass(frozen=True)
class Part:
    """What a dataset should hold: one or several sets with ``images`` each, of which ``each`` a class if all agree."""

    name: str
    sets: Sequence[Callable[[], ImageDataset]]
    classes: int
    images: int
    each: int | None = None


@dataclass(frozen=True)
class Entry:
    """A dataset of the catalogue.

    ``folder`` is what `get` makes below the data root, ``also`` other places there it may have. ``room`` is about what
    it needs unpacked, blocks of the file system included. ``files`` are MD5 sums of files inside. Where ``by_hand``
    says how to get it, it cannot be downloaded without asking. ``read`` shows its reader.
    """

    name: str
    title: str
    folder: str
    archives: tuple[Archive, ...]
    marks: Callable[[Path], bool]
    parts: Callable[[Path], Iterable[Part]]
    read: str
    page: str
    terms: str
    room: int
    also: tuple[str, ...] = ()
    alternatives: tuple[Archive, ...] = ()
    files: Mapping[str, str] = field(default_factory=dict)
    by_hand: str = ""
    readable_packed: bool = False

    @property
    def size(self) -> int:
        """Bytes to download."""
        return sum(archive.size for archive in self.archives)

    def room_for(self, archives: Sequence[Archive]) -> int:
        """About what these archives need unpacked; all of the dataset, if none is given."""
        share = sum(archive.size for archive in archives)
        return self.room * share // self.size if archives and self.size else self.room
