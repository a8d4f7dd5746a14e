from collections.abc import Iterator
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from cretta.buffer import SourceBuffer
from cretta.data import (
    CORRUPTIONS,
    VALIDATION_CORRUPTIONS,
    ArrayDataset,
    CorruptedDataset,
    ImageDataset,
    corrupt,
    embedded,
    image_folder,
)
from cretta.data.corruptions import photographs
from cretta.data.dataset import Pixels
from cretta.errors import OptionError
from cretta.streams import dirichlet

FROST_IS_THERE = any(metadata.distributions(name="imagecorruptions"))
ALL = [
    pytest.param(
        name,
        marks=pytest.mark.skipif(
            name == "frost" and not FROST_IS_THERE,
            reason='the frost photographs are not installed: pip install "cretta[data]"',
        ),
    )
    for name in (*CORRUPTIONS, *VALIDATION_CORRUPTIONS)
]


@pytest.fixture(scope="module")
def clean() -> ArrayDataset:
    test = embedded("test")
    # More than the 32 images that a thread takes at once.
    return ArrayDataset("cifar10", test.images[:75], test.labels[:75], test.classes)


@pytest.fixture
def threads() -> Iterator[None]:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


@pytest.mark.parametrize("name", ALL)
def test_any_order_batch_and_worker_count_give_the_same_bytes(clean: ArrayDataset, name: str) -> None:
    dataset = CorruptedDataset(clean, name, 4, seed=3)
    whole = corrupt(clean.images, name, 4, seed=3)
    order = np.random.default_rng(0).permutation(len(clean))
    for size, workers in ((75, 1), (40, 3), (7, None)):
        batches = [dataset.read(order[at : at + size], workers=workers) for at in range(0, len(order), size)]
        assert np.array_equal(np.concatenate(batches), whole[order])
    assert np.array_equal(dataset[74][0], whole[74])
    assert np.array_equal(dataset[-1][0], whole[74])
    assert np.array_equal(dataset.read([5, 5, 0]), whole[[5, 5, 0]])


def test_numbers_of_ones_own_and_the_threads_of_torch(clean: ArrayDataset, threads: None) -> None:
    images = clean.images[:40]
    whole = corrupt(images, "snow", 2)
    for count in (1, 2):
        torch.set_num_threads(count)
        for workers in (None, 1, 2, 5):
            backwards = corrupt(images[::-1], "snow", 2, indices=np.arange(40, dtype=np.uint8)[::-1], workers=workers)
            assert np.array_equal(backwards[::-1], whole)
    far = corrupt(images[:1], "snow", 2, indices=[2**32 - 1])
    assert np.array_equal(far, corrupt(images[:1], "snow", 2, indices=[2**32 - 1]))
    assert not np.array_equal(far, whole[:1])


def test_it_is_a_dataset_like_any_other(clean: ArrayDataset) -> None:
    dataset: ImageDataset = CorruptedDataset(clean, "fog")
    assert isinstance(dataset, CorruptedDataset)
    assert (dataset.name, dataset.domain, len(dataset)) == ("cifar10", "fog/5", 75)
    assert dataset.classes == clean.classes
    assert np.array_equal(dataset.labels, clean.labels)
    image, label = dataset[3]
    assert image.dtype == np.uint8
    assert (image.shape, image.flags.writeable) == ((32, 32, 3), True)
    assert (label, type(label)) == (int(clean.labels[3]), int)
    assert dataset.read([]).shape == (0, 32, 32, 3)
    with pytest.raises(IndexError):
        dataset[75]
    assert len(list(zip(dataset, range(80), strict=False))) == 75  # type: ignore[call-overload]
    sketch = ArrayDataset("pacs", clean.images, clean.labels, clean.classes, "sketch")
    assert CorruptedDataset(sketch, "fog", 1).domain == "sketch/fog/1"


def test_a_dirichlet_stream_over_corrupted_images(clean: ArrayDataset) -> None:
    dataset = CorruptedDataset(clean, "glass_blur", 3, seed=1)
    whole = corrupt(clean.images, "glass_blur", 3, seed=1)
    seen: list[int] = []
    for batch in dirichlet(dataset.labels, 16, 0.1, seed=2):
        assert np.array_equal(dataset.read(batch.indices), whole[batch.indices])
        seen += batch.indices.tolist()
    assert seen != sorted(seen)
    assert sorted(seen) == list(range(75))


def test_a_buffer_takes_corrupted_images(clean: ArrayDataset) -> None:
    dataset = CorruptedDataset(clean, "contrast", 5)
    buffer = SourceBuffer.sample(dataset, size=10, augment="none")
    expected = {image.tobytes() for image in corrupt(clean.images, "contrast", 5)}
    assert {image.tobytes() for image in buffer.images.permute(0, 2, 3, 1).numpy()} <= expected


def test_images_of_different_sizes(tmp_path: Path) -> None:
    pixels = []
    for number, shape in enumerate(((40, 30), (60, 200), (150, 160))):
        pixels.append(np.random.default_rng(number).integers(0, 256, (*shape, 3), dtype=np.uint8))
        Image.fromarray(pixels[-1]).save(tmp_path / f"{number}.png")
    dataset = CorruptedDataset(image_folder(tmp_path), "gaussian_noise", 5)
    for number, image in enumerate(pixels):
        # The strength follows the size of each.
        assert np.array_equal(dataset[number][0], corrupt(image[None], "gaussian_noise", 5, indices=[number])[0])
        assert np.array_equal(dataset.read([number])[0], dataset[number][0])
    fixed = CorruptedDataset(image_folder(tmp_path), "gaussian_noise", 5, parameters="cifar")
    expected = corrupt(pixels[2][None], "gaussian_noise", 5, indices=[2], parameters="cifar")[0]
    assert np.array_equal(fixed[2][0], expected)
    with pytest.raises(OptionError, match="differ in size"):
        dataset.read([0, 1])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"corruption": "rain"}, "unknown corruption 'rain'. Allowed: brightness"),
        ({"severity": 0}, "severity=0: expected an integer from 1 to 5"),
        ({"seed": -1}, "seed=-1: expected an integer"),
        ({"parameters": "large"}, "parameters='large': expected one of"),
    ],
)
def test_invalid_options_raise_before_an_image_is_read(
    clean: ArrayDataset, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(OptionError, match=message):
        CorruptedDataset(clean, **{"corruption": "fog", **options})


def test_frost_without_its_photographs_raises_before_an_image_is_read(
    clean: ArrayDataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(metadata, "files", lambda name: [])
    photographs._originals.cache_clear()
    photographs._scaled.cache_clear()
    with pytest.raises(OptionError, match=r'pip install "cretta\[data\]"'):
        CorruptedDataset(clean, "frost")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"indices": [1, 2]}, r"indices are int64 of shape \(2,\): give 3 integers"),
        ({"indices": [0.0, 1.0, 2.0]}, "indices are float64"),
        ({"indices": [True, False, True]}, "indices are bool"),
        ({"indices": [0, 1, -1]}, "indices run from -1 to 1"),
        ({"indices": [0, 1, 2**32]}, f"to {2**32}: give numbers from 0 to {2**32 - 1}"),
        ({"workers": 0}, "workers=0: expected an integer from 1"),
    ],
)
def test_invalid_numbers(options: dict[str, Any], message: str) -> None:
    images: Pixels = np.zeros((3, 8, 8, 3), np.uint8)
    with pytest.raises(OptionError, match=message):
        corrupt(images, "fog", **options)
