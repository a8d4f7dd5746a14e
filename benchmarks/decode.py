"""Speed of decoding: images a second of FileDataset.read, beside a plain loop over Pillow.

Run with `python benchmarks/decode.py`; `--folder photos --size 224` takes JPEGs of one's own. Both ways take turns
and the best round of each counts, so that other work on the machine disturbs less.
"""

import argparse
import os
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from cretta.data import FileDataset, image_folder


def make(folder: Path, count: int, side: int) -> None:
    generator = np.random.default_rng(0)
    for number in range(count):
        # Smooth with some grain: white noise takes a decoder longer than photographs do, flat color less.
        coarse = Image.fromarray(generator.integers(0, 256, (14, 14, 3), dtype=np.uint8)).resize((side, side))
        grain = generator.integers(-12, 13, (side, side, 3))
        pixels = np.clip(np.asarray(coarse) + grain, 0, 255).astype(np.uint8)
        Image.fromarray(pixels).save(folder / f"{number}.jpg", quality=90)


def plain_loop(dataset: FileDataset) -> NDArray[np.uint8]:
    images = []
    for file in dataset.files:
        with Image.open(file) as opened:
            image = opened.convert("RGB")
        if isinstance(dataset.size, int):
            scale = round(dataset.size / 0.875) / min(image.size)
            image = image.resize((int(image.width * scale), int(image.height * scale)), Image.Resampling.BILINEAR)
            left, top = round((image.width - dataset.size) / 2), round((image.height - dataset.size) / 2)
            image = image.crop((left, top, left + dataset.size, top + dataset.size))
        images.append(np.asarray(image))
    return np.stack(images)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, help="a folder of JPEGs (default: made for the purpose)")
    parser.add_argument("--images", type=int, default=500, help="how many to make (default: %(default)s)")
    parser.add_argument("--side", type=int, default=224, help="their side in pixels (default: %(default)s)")
    parser.add_argument("--size", type=int, help="scale and cut to this size (default: as they are)")
    parser.add_argument("--workers", type=int, help="threads (default: one a core)")
    parser.add_argument("--rounds", type=int, default=5, help="rounds of each (default: %(default)s)")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder = options.folder or Path(temporary)
        if options.folder is None:
            make(folder, options.images, options.side)
        dataset = image_folder(folder, labeled=False, size=options.size)
        everything = range(len(dataset))
        ways: dict[str, Callable[[], NDArray[np.uint8]]] = {
            "plain loop": lambda: plain_loop(dataset),
            "FileDataset.read": lambda: dataset.read(everything, workers=options.workers),
        }
        seconds: dict[str, list[float]] = {name: [] for name in ways}
        for _ in range(options.rounds):
            for name, way in ways.items():
                begin = time.perf_counter()
                way()
                seconds[name].append(time.perf_counter() - begin)
    best = {name: min(each) for name, each in seconds.items()}
    print(f"{len(dataset)} images, {os.cpu_count()} cores")
    for name, each in best.items():
        print(f"{name:18} {len(dataset) / each:7.0f} images/s")
    print(f"{'ratio':18} {best['plain loop'] / best['FileDataset.read']:7.2f}")


if __name__ == "__main__":
    main()
