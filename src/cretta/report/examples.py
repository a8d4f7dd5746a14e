"""Example images: the same few images under each shift, side by side."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import numpy as np
from PIL import Image, ImageOps

from cretta.bench import Result, RunContext
from cretta.data import ImageDataset
from cretta.data.dataset import Pixels
from cretta.data.domains import CLEAN, Domain
from cretta.errors import CrettaError

IMAGES = 6
"""Examples per shift."""
SIDE = 96
"""The largest side of an example, in pixels."""
SHIFTS = 24
"""The largest number of shifts of a dataset that are shown."""

Example = tuple[str, int | None, Domain]
"""Dataset, side of its images, and domain."""


def example_images(
    results: Sequence[Result], context: RunContext, track: Callable[[Sequence[Example]], Iterable[Example]] = iter
) -> tuple[dict[str, Pixels], list[str]]:
    """Return strips of images by the name of their shift, and notes on those that are left out.

    ``track`` wraps the loop over the strips, such as ``rich.progress.track``.
    """
    sources = list(dict.fromkeys((result.run.data, result.run.size) for result in results))
    requested: list[Example] = []
    notes = []
    for data, size in sources:
        domains = _strongest(domain for result in results if result.run.data == data for domain in result.run.domains)
        requested += [(data, size, domain) for domain in domains[:SHIFTS]]
        if len(domains) > SHIFTS:
            notes.append(f"Example images are of {SHIFTS} of the {len(domains)} shifts of {data}.")
    strips: dict[str, Pixels] = {}
    for data, size, domain in track(requested):
        try:
            strip = _strip(context.benchmark(data, size).images(domain))
        except (CrettaError, OSError) as error:
            notes.append(f"No example images of {data}: {error}")
            continue
        strips[f"{data}, {domain}" if len(sources) > 1 else str(domain)] = strip
    return strips, list(dict.fromkeys(notes))


def _strongest(domains: Iterable[Domain]) -> list[Domain]:
    """Return the clean domain, then each corruption at the highest of its severities."""
    strongest = {CLEAN: Domain(CLEAN)}
    for domain in sorted(set(domains), key=str):
        strongest[domain.name] = domain
    return list(strongest.values())


def _strip(dataset: ImageDataset) -> Pixels:
    """Return images from evenly spaced positions of the dataset, side by side."""
    count = min(IMAGES, len(dataset))
    images = [Image.fromarray(dataset[number * len(dataset) // count][0]) for number in range(count)]
    side = min(SIDE, max(max(image.size) for image in images))
    tiles = [np.asarray(ImageOps.fit(image, (side, side))) for image in images]
    gap = np.full((side, max(1, side // 24), 3), 255, dtype=np.uint8)
    spaced = [part for tile in tiles for part in (tile, gap)][:-1]
    return np.concatenate(spaced, axis=1)
