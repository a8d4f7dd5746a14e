"""CIFAR-10: the small piece of it that ships with the package, for a first run without a download."""

import hashlib
import json
from importlib import resources
from typing import Any, Literal, get_args

import numpy as np
from PIL import Image

from cretta.data.dataset import ArrayDataset
from cretta.errors import OptionError, StateError

Split = Literal["train", "test"]

EMBEDDED = resources.files("cretta.data") / "embedded"


def embedded(split: Split) -> ArrayDataset:
    """Return the shipped piece of CIFAR-10: the first 2 000 test images, or 100 training images a class.

    The training images run through the classes 0, 1, ..., 9, 0, 1, ...: any ten in a row are balanced.

    >>> embedded("test").labels[:10].tolist()
    [3, 8, 8, 0, 6, 6, 1, 6, 3, 1]
    """
    if split not in get_args(Split):
        raise OptionError(f"split={split!r}: give one of {', '.join(get_args(Split))}.")
    try:
        index: dict[str, Any] = json.loads((EMBEDDED / "index.json").read_text("utf-8"))
        entry: dict[str, Any] = index["splits"][split]
        with (EMBEDDED / entry["file"]).open("rb") as file, Image.open(file) as opened:
            sheet = np.asarray(opened)
        tiles = sheet.reshape(-1, 32, entry["columns"], 32, 3).transpose(0, 2, 1, 3, 4)
        images = np.ascontiguousarray(tiles).reshape(-1, 32, 32, 3)
    # A cut or altered PNG raises SyntaxError, OSError, ValueError or zlib.error, by the place of the fault.
    except Exception as error:
        raise StateError(f"the embedded {split} images cannot be read ({error}): reinstall cretta.") from error
    found = hashlib.sha256(images.data).hexdigest()
    if found != entry["sha256"]:
        raise StateError(
            f"the embedded {split} images are damaged: their pixels have sha256 {found}, "
            f"not {entry['sha256']}. Reinstall cretta."
        )
    return ArrayDataset(index["name"], images, np.asarray(entry["labels"], np.int64), tuple(index["classes"]))
