"""PACS (Li et al., 2017): seven classes as photographs, paintings, cartoons and sketches."""

from pathlib import Path

from cretta.data.dataset import FileDataset, Size
from cretta.data.folder import class_folders, existing_folder
from cretta.errors import OptionError

DOMAINS = ("photo", "art_painting", "cartoon", "sketch")
CLASSES = ("dog", "elephant", "giraffe", "guitar", "horse", "house", "person")


def pacs_domain(root: str | Path, domain: str, *, size: Size = None) -> FileDataset:
    """Return one domain of PACS, ``<root>/<domain>/<class>/…``; the original images have 227 px, so pass a ``size``."""
    if domain not in DOMAINS:
        raise OptionError(f"domain={domain!r}: give one of {', '.join(DOMAINS)}.")
    folder = existing_folder(Path(root, domain), f"the folder that holds {', '.join(DOMAINS)}")
    files, labels = class_folders(folder, CLASSES, require_all=True)
    return FileDataset("pacs", files, labels, CLASSES, domain, size)
