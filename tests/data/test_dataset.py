import dataclasses
import os
import struct
import threading
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image

from cretta.buffer import SourceBuffer
from cretta.data import ArrayDataset, FileDataset, ImageDataset
from cretta.errors import OptionError, StateError
from processes import LONG


def picture(height: int, width: int, seed: int = 0) -> Image.Image:
    coarse = np.random.default_rng(seed).integers(0, 256, (5, 5, 3), dtype=np.uint8)
    return Image.fromarray(coarse).resize((width, height), Image.Resampling.BICUBIC)


def files(folder: Path, count: int, height: int = 20, width: int = 24) -> tuple[Path, ...]:
    paths = tuple(folder / f"{number}.jpg" for number in range(count))
    for number, path in enumerate(paths):
        picture(height, width, number).save(path)
    return paths


def labels(count: int) -> NDArray[np.int64]:
    return np.arange(count, dtype=np.int64) % 2


def toy(folder: Path, count: int, **options: Any) -> FileDataset:
    return FileDataset("toy", files(folder, count), labels(count), ("a", "b"), **options)


def test_both_kinds_offer_the_same(tmp_path: Path) -> None:
    from_files = toy(tmp_path, 5, domain="sketch")
    in_memory = ArrayDataset("toy", from_files.read(range(5)), labels(5), ("a", "b"), "sketch")
    both: list[ImageDataset] = [from_files, in_memory]
    for dataset in both:
        assert len(dataset) == 5
        assert (dataset.name, dataset.classes, dataset.domain) == ("toy", ("a", "b"), "sketch")
        image, label = dataset[3]
        assert (image.shape, image.flags.writeable) == ((20, 24, 3), True)
        assert image.dtype == np.uint8
        assert (label, type(label)) == (1, int)
        assert np.array_equal(dataset.read([3, 0, 3])[2], image)
        assert dataset.read([3, 0], workers=1).flags.writeable
        with pytest.raises(IndexError):
            dataset[5]


@pytest.mark.parametrize("workers", [None, 1, 3])
def test_read_is_the_plain_loop(tmp_path: Path, workers: int | None) -> None:
    dataset = toy(tmp_path, 70)
    order = np.random.default_rng(0).permutation(70)
    images = dataset.read(order, workers=workers)
    expected = [np.asarray(Image.open(dataset.files[place])) for place in order]
    assert images.dtype == np.uint8
    assert np.array_equal(images, np.stack(expected))


def test_labels_are_known_without_decoding(tmp_path: Path) -> None:
    lost = FileDataset("toy", (tmp_path / "lost.jpg",) * 3, labels(3), ("a", "b"))
    assert lost.labels.tolist() == [0, 1, 0]


def test_a_buffer_takes_files(tmp_path: Path) -> None:
    dataset = toy(tmp_path, 8)
    buffer = SourceBuffer.sample(dataset, size=4, augment="none")
    assert buffer.images.shape == (4, 3, 20, 24)
    assert buffer.labels is not None
    assert sorted(buffer.labels.tolist()) == [0, 0, 1, 1]


def test_the_usual_preprocessing(tmp_path: Path) -> None:
    picture(300, 401).save(tmp_path / "a.png")
    dataset = FileDataset("toy", (tmp_path / "a.png",), labels(1), ("a",), size=224)
    # 256 * 401 / 300 = 342.2; (342 - 224) / 2 = 59; (256 - 224) / 2 = 16.
    scaled = picture(300, 401).resize((342, 256), Image.Resampling.BILINEAR)
    assert np.array_equal(dataset[0][0], np.asarray(scaled)[16:240, 59:283])
    picture(300, 402).save(tmp_path / "a.png")
    # 256 * 402 / 300 = 343.04; (343 - 224) / 2 = 59.5 goes to the even 60, as in the reference implementation.
    scaled = picture(300, 402).resize((343, 256), Image.Resampling.BILINEAR)
    assert np.array_equal(dataset.read([0])[0], np.asarray(scaled)[16:240, 60:284])
    exact = dataclasses.replace(dataset, size=(50, 40))
    assert np.array_equal(exact[0][0], np.asarray(picture(300, 402).resize((40, 50), Image.Resampling.BILINEAR)))


def test_options_take_numbers_of_numpy(tmp_path: Path) -> None:
    side: Any = np.int64(16)
    assert toy(tmp_path, 2, size=side).read([0, 1], workers=side).shape == (2, 16, 16, 3)
    assert toy(tmp_path, 1, size=(side, side))[0][0].shape == (16, 16, 3)


def test_scaling_down_is_antialiased(tmp_path: Path) -> None:
    stripes = np.zeros((64, 64, 3), np.uint8)
    stripes[:, ::2] = 255
    Image.fromarray(stripes).save(tmp_path / "a.png")
    image = FileDataset("toy", (tmp_path / "a.png",), labels(1), ("a",), size=(16, 16))[0][0]
    assert np.abs(image[:, 2:-2].astype(int) - 127).max() <= 2


def test_every_mode_becomes_rgb(tmp_path: Path) -> None:
    color = picture(16, 16)
    palette = color.quantize(8)
    for mode in ("L", "LA", "RGBA", "CMYK", "1"):
        suffix = "tif" if mode == "CMYK" else "png"
        converted = color.convert("L").convert(mode) if mode == "LA" else color.convert(mode)
        converted.save(tmp_path / f"{mode}.{suffix}")
    # Warns in Pillow, and warnings are errors here.
    palette.save(tmp_path / "P.png", transparency=bytes([0, 128] * 4))
    paths = tuple(sorted(tmp_path.iterdir()))
    dataset = FileDataset("toy", paths, np.zeros(6, np.int64), ("a",))
    found = dict(zip((path.stem for path in paths), dataset.read(range(6)), strict=True))
    assert np.array_equal(found["RGBA"], np.asarray(color))
    assert np.array_equal(found["L"][..., 1], np.asarray(color.convert("L")))
    assert np.array_equal(found["P"], np.asarray(palette.convert("RGB")))


def deep_png(values: NDArray[np.uint16]) -> bytes:
    """A PNG of 16 bits per channel, which Pillow cannot write in color."""

    def chunk(kind: bytes, content: bytes) -> bytes:
        return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))

    height, width, channels = values.shape
    header = struct.pack(">IIBBBBB", width, height, 16, {1: 0, 3: 2, 4: 6}[channels], 0, 0, 0)
    rows = b"".join(b"\0" + row.astype(">u2").tobytes() for row in values)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b"")


@pytest.mark.parametrize("channels", [1, 3, 4])
def test_sixteen_bits_become_eight_by_rounding(tmp_path: Path, channels: int) -> None:
    """Every value v once: round(v / 257), so that 0 stays 0, 65535 becomes 255 and 257 k becomes k."""
    values = np.arange(65536, dtype=np.uint16).reshape(256, 256, 1)
    shifted = [np.roll(values, 1000 * channel) for channel in range(channels)]
    picture = np.concatenate(shifted, axis=2)
    (tmp_path / "deep.png").write_bytes(deep_png(picture))
    found = FileDataset("deep", (tmp_path / "deep.png",), labels(1), ("a",))[0][0]
    expected = np.rint(picture[..., :3] / 257).astype(np.uint8)
    assert np.array_equal(found, np.repeat(expected, 3, axis=2) if channels == 1 else expected)
    assert FileDataset("deep", (tmp_path / "deep.png",), labels(1), ("a",), size=32)[0][0].shape == (32, 32, 3)


@pytest.mark.parametrize("damage", ["cut", "empty", "text", "lost", "deep"])
def test_a_broken_file_is_named(tmp_path: Path, damage: str) -> None:
    dataset = toy(tmp_path, 40)
    broken = dataset.files[29]
    if damage == "cut":
        broken.write_bytes(broken.read_bytes()[:-200])
    elif damage == "lost":
        broken.unlink()
    elif damage == "deep":
        broken = tmp_path / "deep.png"
        Image.fromarray(np.full((20, 24), 0.5, np.float32)).save(broken, "TIFF")
        dataset = dataclasses.replace(dataset, files=(*dataset.files[:29], broken, *dataset.files[30:]))
    else:
        broken.write_bytes(b"" if damage == "empty" else b"no image at all")
    with pytest.raises(StateError, match=rf"{broken.name}.*(replace or remove|convert)"):
        dataset[29]
    with pytest.raises(StateError, match=broken.name):
        dataset.read(range(40))
    assert len(dataset.read(range(29))) == 29


def test_images_of_different_sizes_ask_for_a_size(tmp_path: Path) -> None:
    dataset = toy(tmp_path, 3)
    picture(30, 30).save(dataset.files[2])
    with pytest.raises(
        OptionError, match=r"0\.jpg is \(20, 24\).*2\.jpg is \(30, 30\).*size to scale them to, such as 224"
    ):
        dataset.read([0, 1, 2])
    assert dataclasses.replace(dataset, size=16).read([0, 1, 2]).shape == (3, 16, 16, 3)


def test_reading_nothing(tmp_path: Path) -> None:
    dataset = toy(tmp_path, 1)
    assert dataclasses.replace(dataset, size=(6, 7)).read([]).shape == (0, 6, 7, 3)
    assert dataclasses.replace(dataset, size=6).read([]).shape == (0, 6, 6, 3)
    assert len(dataset.read([])) == 0


@pytest.mark.parametrize(
    ("indices", "message"),
    [([0, 3], "run from 0 to 3: toy has 3 images"), ([-1], "from -1"), ([0.5], "list of integers"), ([True], "bool")],
)
def test_invalid_indices(tmp_path: Path, indices: Any, message: str) -> None:
    dataset = toy(tmp_path, 3)
    in_memory = ArrayDataset("toy", np.zeros((3, 2, 2, 3), np.uint8), labels(3), ("a", "b"))
    for each in (dataset, in_memory):
        with pytest.raises(OptionError, match=message):
            each.read(indices)


@pytest.mark.parametrize("size", [0, -3, True, 2.5, (3,), (3, 0), (3, 4, 5), "224"])
def test_invalid_sizes(size: Any) -> None:
    with pytest.raises(OptionError, match="size="):
        FileDataset("toy", (), labels(0), (), size=size)


def test_invalid_options(tmp_path: Path) -> None:
    for workers in (0, 1.5):
        with pytest.raises(OptionError, match="workers="):
            toy(tmp_path, 1).read([0], workers=workers)  # type: ignore[arg-type]
    with pytest.raises(OptionError, match=r"give int64 of shape \(3,\)"):
        FileDataset("toy", files(tmp_path, 3), labels(2), ("a", "b"))
    with pytest.raises(OptionError, match="-1 for all"):
        FileDataset("toy", files(tmp_path, 3), np.array([0, -1, 1]), ("a", "b"))


@pytest.mark.skipif((os.cpu_count() or 1) < 2, reason="one core")
def test_threads_decode_at_the_same_time(tmp_path: Path) -> None:
    """A decoder that waits for another one to have begun gets through only if two run at once."""
    dataset = toy(tmp_path, 40)
    meeting = threading.Barrier(2, timeout=LONG)
    met: list[bool] = []

    class Meeting(FileDataset):
        def _decode(self, index: int) -> NDArray[np.uint8]:
            if index in (1, 20) and not met:
                meeting.wait()
                met.append(True)
            return super()._decode(index)

    parallel = Meeting(dataset.name, dataset.files, dataset.labels, dataset.classes)
    assert np.array_equal(parallel.read(range(40), workers=2), dataset.read(range(40)))
    assert met
