"""The datasets by name: who publishes them, what folder they make, where that lies, and whether it is whole."""

from .checking import Finding, check, md5_of, spaced
from .entries import entry, names
from .places import command, find, locate, missing, packed, place, root_of
from .records import Archive, Entry, Part

__all__ = [
    "Archive",
    "Entry",
    "Finding",
    "Part",
    "check",
    "command",
    "entry",
    "find",
    "locate",
    "md5_of",
    "missing",
    "names",
    "packed",
    "place",
    "root_of",
    "spaced",
]
