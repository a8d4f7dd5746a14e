"""Speed of the corruptions: images a second at each severity, beside the published generator.

Run with `python benchmarks/corruptions.py`; `--images 10000` makes as many images as CIFAR-10-C holds at a severity.
"""

import argparse
import time

import numpy as np
import torch

from cretta.data.corruptions import CORRUPTIONS, corrupt
from cretta.errors import OptionError

PUBLISHED_MILLISECONDS = {
    "frost": 37.0,
    "glass_blur": 33.0,
    "zoom_blur": 24.0,
    "motion_blur": 13.0,
    "snow": 13.0,
    "fog": 6.0,
    "elastic_transform": 4.0,
    "brightness": 3.0,
    "jpeg_compression": 1.4,
}
"""The published generator on one core, at 32 px and severity 5; the others take less than 1 ms."""


def smooth_images(count: int, side: int) -> np.ndarray[tuple[int, ...], np.dtype[np.uint8]]:
    # JPEG and Poisson noise depend on the content: white noise would mislead.
    coarse = torch.rand(count, 3, 8, 8, generator=torch.Generator().manual_seed(0))
    images = torch.nn.functional.interpolate(coarse, size=(side, side), mode="bilinear")
    return (images * 255).to(torch.uint8).permute(0, 2, 3, 1).contiguous().numpy()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--images", type=int, default=1000, help="images at each severity (default: %(default)s)")
    parser.add_argument("--side", type=int, default=32, help="side of the images in pixels (default: %(default)s)")
    parser.add_argument("--only", nargs="+", choices=CORRUPTIONS, default=CORRUPTIONS, metavar="NAME")
    options = parser.parse_args()
    images = smooth_images(options.images, options.side)

    print(f"{options.images} images of {options.side} px at each severity, {torch.get_num_threads()} threads")
    print("published: the original generator on one core")
    print(f"{'corruption':18} {'images/s':>9} {'slowest':>9} {'ms/image':>9} {'published':>9} {'ratio':>6}")
    print(f"{'':18} {'mean':>9} {'severity':>9} {'sev. 5':>9} {'sev. 5':>9}")
    total, measured = 0.0, 0
    for name in options.only:
        try:
            corrupt(images[:64], name)
        except OptionError as error:
            print(f"{name:18} {error}")
            continue
        seconds = []
        for severity in range(1, 6):
            begin = time.perf_counter()
            corrupt(images, name, severity)
            seconds.append((time.perf_counter() - begin) / options.images)
        total += sum(seconds)
        measured += 1
        published = PUBLISHED_MILLISECONDS.get(name) if options.side == 32 else None
        beside = f"{published:9.1f} {published / (seconds[4] * 1e3):6.0f}" if published else f"{'–':>9} {'–':>6}"
        print(f"{name:18} {5 / sum(seconds):9.0f} {1 / max(seconds):9.0f} {seconds[4] * 1e3:9.3f} {beside}", flush=True)
    if measured:
        print(
            f"{measured} corruptions × 5 severities × 10 000 images: {total * 10_000:.0f} s "
            f"({5 * measured / total:.0f} images/s)"
        )


if __name__ == "__main__":
    main()
