from __future__ import annotations

import hashlib
import json
import os
import random
import resource
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor

import forks
import textbook
from cretta import SourceBuffer, adapt
from cretta.buffer import BLOCK
from cretta.errors import BatchError, OptionError, StateError
from cretta.storage import tensorfile
from source_images import (
    ARRAYS,
    CHANNELS_FIRST,
    SIDE,
    Net,
    drawn,
    floats,
    half,
    pixels,
    speckle,
)

# Wrong arguments


@pytest.mark.parametrize(
    ("images", "message"),
    [
        ([[1.0]], "list"),
        (None, "NoneType"),
        (torch.rand(5), r"\(5,\)"),
        (torch.zeros(3, 3, 4, 4, dtype=torch.int64), "int64"),
        (np.zeros((3, 4, 4, 3), np.int32), "int32"),
        (torch.zeros(3, 3, 4, 4, dtype=torch.complex64), "complex64"),
        (torch.full((2, 3, 4, 4), float("nan")), "NaN"),
        (torch.full((2, 3, 4, 4), float("inf")), "infinite"),
        (torch.zeros(0, 3, 4, 4), "at least one image"),
        (torch.zeros(0, 3, 4, 4, dtype=torch.uint8), "at least one image"),
        (np.zeros((0, 4, 4, 3), np.uint8), "at least one image"),
    ],
)
def test_wrong_images(images: Any, message: str) -> None:
    with pytest.raises(OptionError, match=message):
        SourceBuffer(images)


@pytest.mark.parametrize("labels", [[0], [0, 1, 2, 3, 4, 5], torch.zeros(5, 1), [], [[0], [1, 2]]])
def test_labels_that_do_not_fit(labels: Any) -> None:
    with pytest.raises(OptionError, match="one class number per image"):
        SourceBuffer(pixels(5), labels)


@pytest.mark.parametrize("augment", ["Rotate", "", None, 3])
def test_unknown_augmentations(augment: Any) -> None:
    with pytest.raises(OptionError, match="unknown augmentation"):
        SourceBuffer(pixels(), augment=augment)


def test_augmentations_of_images_need_images() -> None:
    with pytest.raises(OptionError, match="augment='none' or a callable"):
        SourceBuffer(torch.rand(5, 7))
    features = torch.randn(5, 7)
    assert torch.equal(SourceBuffer(features, augment="none").batch(3, 4), features[[3, 4, 0, 1]])


def test_a_batch_of_other_images_does_not_fit() -> None:
    buffer = SourceBuffer(pixels(), augment="none")
    with pytest.raises(BatchError, match="build the buffer from what net takes"):
        buffer.batch(0, 2, like=torch.zeros(2, 1, SIDE, SIDE))
    message = rf"\(3, {SIDE}, {SIDE}\) in the buffer and \(3, {2 * SIDE}, {SIDE}\) in the batch"
    with pytest.raises(BatchError, match=message):
        buffer.batch(0, 2, like=torch.zeros(2, 3, 2 * SIDE, SIDE))
    with pytest.raises(BatchError, match="build the buffer from what net takes"):
        buffer.batch(0, 2, like=torch.zeros(2, 3))


# Storage


def test_every_level_of_a_byte_is_stored_and_returned_without_loss() -> None:
    levels = torch.arange(256, dtype=torch.uint8).repeat(3).view(1, 3, 16, 16)
    for given in (levels, levels.float() / 255, torch.from_numpy(levels.numpy() / 255).float()):
        buffer = SourceBuffer(given, augment="none")
        assert buffer.images.dtype == torch.uint8
        assert torch.equal(buffer.images, levels)
        assert torch.equal(buffer.batch(0, 1), levels.float() / 255)


def test_double_precision_levels_come_back_in_double_precision() -> None:
    given = pixels().double() / 255
    assert torch.equal(SourceBuffer(given, augment="none").batch(0, 5, like=given), given)


def outlier(value: float) -> Tensor:
    images = floats(pixels())
    images[2, 1, 0, 0] = value
    return images


@pytest.mark.parametrize(
    "given",
    [
        drawn(5),
        drawn(5).double(),
        drawn(5).half(),
        drawn(5).bfloat16(),
        (floats(pixels()) - 0.5) / 0.25,
        outlier(0.4 / 255),
        outlier(256 / 255),
        outlier(-1 / 255),
        outlier(77 / 255 + 1e-6),  # 17 ulp from a level: near, but not it
        outlier(77 / 255 - 3e-6),
    ],
    ids=["normal", "double", "half", "bfloat16", "normalized", "off", "above", "below", "a bit more", "a bit less"],
)
def test_bytes_are_not_used_when_they_would_lose_anything(given: Tensor) -> None:
    buffer = SourceBuffer(given, augment="none")
    assert torch.equal(buffer.batch(0, 5, like=given), given)
    assert torch.equal(buffer.batch(0, 5).to(given.dtype), given)


def test_numpy_arrays_channels_last_or_first() -> None:
    assert torch.equal(SourceBuffer(ARRAYS).images, CHANNELS_FIRST)
    assert torch.equal(SourceBuffer(np.ascontiguousarray(ARRAYS[..., :1])).images, CHANNELS_FIRST[:, :1])
    assert torch.equal(SourceBuffer(CHANNELS_FIRST.numpy()).images, CHANNELS_FIRST)
    given = drawn(4).numpy()
    assert torch.equal(SourceBuffer(given, augment="none").batch(0, 4), drawn(4))


def test_floats_given_are_not_the_buffers_own() -> None:
    given = drawn(4)
    buffer = SourceBuffer(given, augment="none")
    given.zero_()
    assert torch.equal(buffer.batch(0, 4), drawn(4))


def test_length_and_repr() -> None:
    assert len(SourceBuffer(pixels(5))) == 5
    assert repr(SourceBuffer(pixels(5))) == f"SourceBuffer(5 images (3, {SIDE}, {SIDE}), augment='rotate')"
    assert "half" in repr(SourceBuffer(pixels(5), augment=half))


# Reading


@pytest.mark.parametrize("given", [pixels(), drawn(5)], ids=["bytes", "floats"])
@pytest.mark.parametrize(
    ("start", "count", "expected"),
    [
        (0, 3, [0, 1, 2]),
        (2, 3, [2, 3, 4]),
        (4, 3, [4, 0, 1]),
        (5, 1, [0]),
        (13, 2, [3, 4]),
        (1, 12, [1, 2, 3, 4, 0, 1, 2, 3, 4, 0, 1, 2]),
    ],
)
def test_batches_come_in_order_and_cycle(given: Tensor, start: int, count: int, expected: list[int]) -> None:
    values = floats(given) if given.dtype == torch.uint8 else given
    assert torch.equal(SourceBuffer(given, augment="none").batch(start, count), values[expected])


@pytest.mark.parametrize("augment", ["none", "rotate"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16])
def test_batches_have_the_type_of_like(dtype: torch.dtype, augment: str) -> None:
    buffer = SourceBuffer(pixels(), augment=augment)
    found = buffer.batch(0, 3, like=torch.zeros(1, 3, SIDE, SIDE, dtype=dtype))
    assert found.dtype == dtype
    torch.testing.assert_close(found.float(), buffer.batch(0, 3), atol=4e-3, rtol=0)
    assert buffer.batch(0, 3, like=torch.zeros(1, 3, SIDE, SIDE, dtype=torch.uint8)).dtype == torch.float32


@pytest.mark.parametrize("given", [pixels(), drawn(5)], ids=["bytes", "floats"])
@pytest.mark.parametrize("stored", [torch.contiguous_format, torch.channels_last])
@pytest.mark.parametrize("wanted", [torch.contiguous_format, torch.channels_last])
@pytest.mark.parametrize("augment", ["none", "rotate"])
def test_batches_have_the_layout_of_like(
    given: Tensor, stored: torch.memory_format, wanted: torch.memory_format, augment: str
) -> None:
    buffer = SourceBuffer(given.contiguous(memory_format=stored), augment=augment)
    plain = SourceBuffer(given, augment=augment).batch(1, 6)
    found = buffer.batch(1, 6, like=torch.zeros(2, 3, SIDE, SIDE).contiguous(memory_format=wanted))
    torch.testing.assert_close(found, plain, atol=1e-6, rtol=0)
    assert found.is_contiguous(memory_format=wanted)


def test_batches_are_on_the_device_of_like() -> None:
    like = torch.zeros(2, 3, SIDE, SIDE, device="meta")
    for augment in ("none", "rotate"):
        assert SourceBuffer(pixels(), augment=augment).batch(0, 2, like=like).device.type == "meta"


@pytest.mark.parametrize("given", [pixels(), drawn(5)], ids=["bytes", "floats"])
@pytest.mark.parametrize("augment", ["none", "rotate"])
def test_writing_into_a_batch_does_not_reach_the_buffer(given: Tensor, augment: str) -> None:
    buffer = SourceBuffer(given, augment=augment)
    first = buffer.batch(0, 5)
    kept = first.clone()
    first.zero_()
    assert torch.equal(buffer.batch(0, 5), kept)


def test_a_buffer_looked_at_in_inference_mode_still_serves_an_adapter() -> None:
    with torch.inference_mode():
        made_inside = SourceBuffer(drawn(2 * BLOCK))
        made_inside.batch(0, 4)
    looked_at = SourceBuffer(pixels(2 * BLOCK))
    with torch.inference_mode():
        looked_at.batch(0, 4)
    for buffer, draw in ((made_inside, torch.randn), (looked_at, torch.rand)):
        model = adapt(Net(), "cretta", buffer=buffer)
        for _ in range(3):
            model(draw(BLOCK // 2 + 1, 3, SIDE, SIDE))
        assert model.last.adapted


# Augmentation


READINGS = [[(0, 150)], [(140, 10), (0, 1), (64, 70), (1, 149)], [(i, 7) for i in range(149, -1, -7)]]


@pytest.mark.parametrize("augment", ["rotate", "cifar100", speckle])
@pytest.mark.parametrize("readings", READINGS[1:], ids=["pieces", "backwards"])
def test_kept_augmentations_do_not_depend_on_how_they_are_read(
    augment: Any, readings: Sequence[tuple[int, int]]
) -> None:
    images = pixels(150)
    whole = SourceBuffer(images, augment=augment).batch(0, 150)
    assert not torch.equal(whole, floats(images))
    buffer = SourceBuffer(images, augment=augment)
    torch.manual_seed(len(readings))
    for start, count in readings:
        index = torch.arange(start, start + count) % 150
        assert torch.equal(buffer.batch(start, count), whole[index])
    assert torch.equal(buffer.batch(0, 150), whole)


def test_kept_augmentations_follow_the_seed() -> None:
    images = pixels(80)
    one, same, other = (SourceBuffer(images, seed=seed).batch(0, 80) for seed in (1, 1, 2))
    assert torch.equal(one, same)
    assert (one != other).flatten(1).any(1).float().mean() > 0.9


def test_blocks_of_images_are_not_augmented_alike() -> None:
    image = pixels(1, side=12)
    found = SourceBuffer(image.repeat(2 * BLOCK, 1, 1, 1)).batch(0, 2 * BLOCK)
    assert len(found.unique(dim=0)) > BLOCK  # the second block is no repetition of the first


@pytest.mark.parametrize("augment", ["rotate", "cifar100", speckle])
def test_augmenting_leaves_the_global_generators_alone(augment: Any) -> None:
    torch.manual_seed(5)
    states = torch.get_rng_state(), random.getstate(), np.random.get_state()[1].tolist()  # type: ignore[index] # noqa: NPY002
    SourceBuffer(pixels(70), augment=augment).batch(0, 70)
    assert torch.equal(torch.get_rng_state(), states[0])
    assert random.getstate() == states[1]
    assert np.random.get_state()[1].tolist() == states[2]  # type: ignore[index] # noqa: NPY002


def broken(images: Tensor) -> Tensor:
    torch.rand(3)
    raise RuntimeError("out of luck")


def test_a_failing_augmentation_leaves_the_generator_and_the_buffer_alone() -> None:
    state = torch.get_rng_state()
    buffer = SourceBuffer(pixels(), augment=broken)
    for _ in range(2):
        with pytest.raises(RuntimeError, match="out of luck"):
            buffer.batch(0, 2)
    assert torch.equal(torch.get_rng_state(), state)


def test_a_callable_augments() -> None:
    images = drawn(5)
    buffer = SourceBuffer(images, augment=half)
    assert torch.equal(buffer.batch(3, 4), images[[3, 4, 0, 1]] * 0.5)


def shift(images: Tensor) -> Tensor:
    return images - 0.5


def test_a_callable_may_leave_the_unit_range() -> None:
    images = pixels()
    found = SourceBuffer(images, augment=shift).batch(0, 5)
    torch.testing.assert_close(found, floats(images) - 0.5, atol=1 / 255, rtol=0)


def in_place(images: Tensor) -> Tensor:
    return images.mul_(0.5)


@pytest.mark.parametrize("given", [pixels(), drawn(5)], ids=["bytes", "floats"])
def test_a_callable_that_works_in_place_does_not_reach_the_images(given: Tensor) -> None:
    buffer = SourceBuffer(given.clone(), augment=in_place)
    buffer.batch(0, 5)
    assert torch.equal(buffer.images, given)
    assert torch.equal(buffer.with_augment("none").batch(0, 5), SourceBuffer(given, augment="none").batch(0, 5))


@pytest.mark.parametrize(
    "wrong",
    [lambda x: x[:, :, 1:], lambda x: x[:-1], lambda x: x.mean(1), lambda x: None],
    ids=["smaller", "fewer", "rank", "nothing"],
)
def test_a_callable_must_keep_the_shape(wrong: Any) -> None:
    with pytest.raises(OptionError, match="augmentation"):
        SourceBuffer(pixels(), augment=wrong).batch(0, 5)


@pytest.mark.parametrize("given", [pixels(70), drawn(70)], ids=["bytes", "floats"])
def test_with_augment_shares_the_images(given: Tensor) -> None:
    buffer = SourceBuffer(given, torch.arange(70), seed=4)
    rotated = buffer.batch(0, 70)
    plain = buffer.with_augment("none")
    assert plain.images.data_ptr() == buffer.images.data_ptr()
    assert plain.augment == "none"
    assert torch.equal(plain.batch(0, 70), SourceBuffer(given, augment="none").batch(0, 70))
    # Neither sees the other's augmented images.
    assert torch.equal(buffer.batch(0, 70), rotated)
    assert torch.equal(plain.with_augment("rotate").batch(0, 70), rotated)
    assert buffer.with_augment("rotate") is buffer
    with pytest.raises(OptionError, match="unknown augmentation"):
        buffer.with_augment("twist")
    assert buffer.augment == "rotate"


# Saving and loading


def test_labels_of_minus_one_are_not_known(tmp_path: Path) -> None:
    """In a new buffer, in one that is drawn, and in a file of a version that stored them."""
    unlabeled, path = [-1] * 5, tmp_path / "source.safetensors"
    new = SourceBuffer(pixels(5), unlabeled)
    drawn_buffer = SourceBuffer.sample([(image, -1) for image in floats(pixels(5))], 5)
    facts = {"kind": "source buffer", "augment": "rotate", "seed": 0, "fingerprint": "of labels"}
    tensorfile.write(path, {"images": new.images, "labels": torch.tensor(unlabeled)}, facts)
    loaded = SourceBuffer.load(path)
    assert (new.labels, drawn_buffer.labels, loaded.labels) == (None, None, None)
    assert new.fingerprint == loaded.fingerprint == SourceBuffer(pixels(5)).fingerprint
    with pytest.raises(OptionError, match=r"or -1 for all images, got negative labels for 2 of 5 images; label these"):
        SourceBuffer(pixels(5), [0, -1, 2, -3, 4])


def test_unlabeled_buffers_calibrate_as_buffers_without_labels() -> None:
    images, x = textbook.source_images(8), textbook.source_images(6, seed=1)
    both = [SourceBuffer(images, labels, "none") for labels in (None, [-1] * 8)]
    net = textbook.small_net()
    without, unlabeled = (adapt(net, "cretta", buffer=buffer, calibrate="auto")(x) for buffer in both)
    assert torch.equal(without, unlabeled)


@pytest.mark.parametrize("given", [pixels(70), drawn(70), drawn(70).half(), drawn(70).double()])
@pytest.mark.parametrize("labels", [None, list(range(70))], ids=["unlabeled", "labeled"])
@pytest.mark.parametrize(("augment", "seed"), [("rotate", 0), ("cifar100", 7), ("none", 1)])
def test_round_trip(tmp_path: Path, given: Tensor, labels: list[int] | None, augment: str, seed: int) -> None:
    buffer = SourceBuffer(given, labels, augment, seed=seed)
    buffer.save(tmp_path / "source.safetensors")
    loaded = SourceBuffer.load(tmp_path / "source.safetensors")
    assert loaded.images.dtype == buffer.images.dtype
    assert torch.equal(loaded.images, buffer.images)
    if labels is None:
        assert loaded.labels is None
    else:
        assert loaded.labels is not None
        assert loaded.labels.tolist() == labels
    assert (loaded.augment, loaded.seed) == (augment, seed)
    assert loaded.fingerprint == buffer.fingerprint
    assert torch.equal(loaded.batch(60, 20), buffer.batch(60, 20))
    assert os.listdir(tmp_path) == ["source.safetensors"]


def test_a_loaded_buffer_can_be_saved_over_its_own_file(tmp_path: Path) -> None:
    path = tmp_path / "source.safetensors"
    buffer = SourceBuffer(pixels(30), list(range(30)))
    buffer.save(path)
    first = path.read_bytes()
    loaded = SourceBuffer.load(path)
    loaded.save(path)
    assert path.read_bytes() == first
    assert torch.equal(loaded.images, buffer.images)
    SourceBuffer(pixels(30, seed=1), list(range(30))).save(path)  # another one takes the place on disk
    assert torch.equal(loaded.images, buffer.images)


def test_a_loaded_buffer_can_be_augmented_otherwise(tmp_path: Path) -> None:
    path = tmp_path / "source.safetensors"
    SourceBuffer(pixels(), seed=3).save(path)
    plain = SourceBuffer.load(path, augment="none")
    assert torch.equal(plain.batch(0, 5), floats(pixels()))
    assert plain.fingerprint == SourceBuffer(pixels(), augment="none", seed=3).fingerprint
    assert torch.equal(
        SourceBuffer.load(path, augment=half).batch(0, 5), SourceBuffer(pixels(), augment=half).batch(0, 5)
    )


def test_a_callable_is_not_in_the_file(tmp_path: Path) -> None:
    path = tmp_path / "source.safetensors"
    buffer = SourceBuffer(pixels(), augment=half)
    buffer.save(path)
    with pytest.raises(OptionError, match="pass it again as augment="):
        SourceBuffer.load(path)
    loaded = SourceBuffer.load(path, augment=half)
    assert torch.equal(loaded.batch(0, 5), buffer.batch(0, 5))
    assert loaded.fingerprint == buffer.fingerprint
    assert torch.equal(SourceBuffer.load(path, augment="none").batch(0, 5), floats(pixels()))


def test_the_fingerprint_is_stable_and_sees_every_change() -> None:
    def made(**change: Any) -> str:
        options: dict[str, Any] = {"images": pixels(), "labels": [0, 1, 2, 3, 4], "augment": "rotate"} | change
        return SourceBuffer(options.pop("images"), options.pop("labels"), **options).fingerprint

    pixel = pixels()
    pixel[4, 2, 5, 5] ^= 1
    changes: list[dict[str, Any]] = [
        {"images": pixel},
        {"images": pixels()[[1, 0, 2, 3, 4]]},
        {"images": pixels().view(5, 3, 4, 9)},
        {"images": drawn(5)},
        {"images": drawn(5).double()},
        {"labels": [0, 1, 2, 3, 5]},
        {"labels": None},
        {"augment": "none"},
        {"augment": "cifar100"},
        {"augment": half},
        {"augment": speckle},
        {"seed": 1},
        {"seed": 10},
    ]
    found = [made(), *(made(**change) for change in changes)]
    assert len(set(found)) == len(found)
    assert made() == found[0]
    assert made(images=floats(pixels())) == found[0]  # the same images, given otherwise
    read = SourceBuffer(pixels(), [0, 1, 2, 3, 4])
    read.batch(0, 5)
    assert read.fingerprint == found[0]
    assert read.with_augment("none").fingerprint == made(augment="none")


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    path = tmp_path / "source.safetensors"
    SourceBuffer(pixels(4, side=3), [0, 1, 2, 3]).save(path)
    return path


def test_any_flipped_byte_is_noticed(saved: Path) -> None:
    good = saved.read_bytes()
    unnoticed = {}
    for place in range(len(good)):
        saved.write_bytes(good[:place] + bytes([good[place] ^ 1]) + good[place + 1 :])
        try:
            SourceBuffer.load(saved)
            unnoticed[place] = "nothing"
        except StateError:
            pass
        except Exception as other:
            unnoticed[place] = repr(other)
    assert not unnoticed


def test_a_flipped_byte_is_noticed_under_a_callable_too(tmp_path: Path) -> None:
    path = tmp_path / "source.safetensors"
    SourceBuffer(pixels(), augment=half).save(path)
    good = path.read_bytes()
    path.write_bytes(good[:-1] + bytes([good[-1] ^ 1]))
    with pytest.raises(StateError, match="damaged"):
        SourceBuffer.load(path, augment=half)


def test_truncated_files(saved: Path) -> None:
    good = saved.read_bytes()
    for length in (0, 1, 7, 8, 9, 100, len(good) // 2, len(good) - 1):
        saved.write_bytes(good[:length])
        with pytest.raises(StateError, match=r"source\.safetensors: not a readable source buffer"):
            SourceBuffer.load(saved)
    saved.write_bytes(good + b"\0")
    with pytest.raises(StateError):
        SourceBuffer.load(saved)


def test_files_of_another_kind(tmp_path: Path) -> None:
    path = tmp_path / "other"
    for content in (b"<!DOCTYPE html>" * 50, b"\x89PNG\r\n" * 50):
        path.write_bytes(content)
        with pytest.raises(StateError, match="not a readable source buffer"):
            SourceBuffer.load(path)
    save_file({"images": pixels()}, path)
    with pytest.raises(StateError, match="not saved by cretta"):
        SourceBuffer.load(path)
    adapt(Net(), "tent").save(path)
    with pytest.raises(StateError, match="holds 'state of an adapter', not a source buffer"):
        SourceBuffer.load(path)


def test_missing_files_and_folders(tmp_path: Path) -> None:
    with pytest.raises(StateError, match="no such file"):
        SourceBuffer.load(tmp_path / "nowhere")
    with pytest.raises(StateError, match="is a folder"):
        SourceBuffer.load(tmp_path)
    with pytest.raises(StateError, match="does not exist"):
        SourceBuffer(pixels()).save(tmp_path / "no" / "folder")
    (tmp_path / "file").write_text("")
    with pytest.raises(StateError, match="cannot write"):
        SourceBuffer(pixels()).save(tmp_path / "file" / "source")
    assert os.listdir(tmp_path) == ["file"]


def test_a_folder_in_the_place_of_the_file(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    with pytest.raises(StateError, match="folder"):
        SourceBuffer(pixels()).save(tmp_path / "folder")
    assert os.listdir(tmp_path) == ["folder"]


def test_a_folder_that_may_not_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any, **__: Any) -> None:
        raise PermissionError(13, "Permission denied", str(tmp_path))

    if os.geteuid() == 0:  # nothing is forbidden to root
        monkeypatch.setattr("pathlib.Path.touch", refuse)
    else:
        tmp_path.chmod(0o500)
    with pytest.raises(StateError, match="cannot write"):
        SourceBuffer(pixels()).save(tmp_path / "source")
    tmp_path.chmod(0o700)
    assert os.listdir(tmp_path) == []


def test_a_write_that_fails_midway_leaves_the_old_file_alone(saved: Path) -> None:
    good = saved.read_bytes()
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    wrong: BaseException | None = None
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, hard))  # a full disk, as far as this process can tell
    try:
        SourceBuffer(pixels(200)).save(saved)
    except Exception as raised:
        wrong = raised
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert os.listdir(saved.parent) == [saved.name]
    assert saved.read_bytes() == good
    assert isinstance(wrong, StateError)
    assert saved.name in str(wrong)


def test_an_interrupted_write_leaves_the_old_file_alone(saved: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(*_: Any) -> None:
        raise KeyboardInterrupt

    good = saved.read_bytes()
    monkeypatch.setattr("os.replace", interrupt)
    with pytest.raises(KeyboardInterrupt):
        SourceBuffer(pixels(200)).save(saved)
    assert os.listdir(saved.parent) == [saved.name]
    assert saved.read_bytes() == good


def test_the_file_is_readable_for_whom_the_umask_says(tmp_path: Path) -> None:
    old = os.umask(0o022)
    try:
        SourceBuffer(pixels()).save(tmp_path / "source")
    finally:
        os.umask(old)
    assert (tmp_path / "source").stat().st_mode & 0o777 == 0o644


# In another process

SCRIPT = """
import hashlib, json, sys
import torch
from cretta import SourceBuffer

def resident():
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) for line in status if line.startswith("VmRSS")) * 1024

def grown(path):
    before = resident()
    buffer = SourceBuffer.load(path, verify=False)
    loaded = resident() - before
    first = buffer.batch(0, 8)
    return {"loaded": loaded, "read": resident() - before, "sum": float(first.double().sum()), "length": len(buffer)}

torch.set_num_threads(1)
bytes_path, floats_path, small_path = sys.argv[1:]
small = SourceBuffer.load(small_path)  # first: what all of them need is then in memory
found = {"hash": hashlib.sha256(small.batch(0, len(small)).numpy().tobytes()).hexdigest()}
SourceBuffer(torch.zeros(2, 3, 4, 4), augment="none").batch(0, 2)
print(json.dumps(found | {"bytes": grown(bytes_path), "floats": grown(floats_path)}))
"""

SIZES = {"bytes": 60_000_000, "floats": 60_000_000}


@pytest.fixture(scope="module")
def elsewhere(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What another process finds in three buffers saved here: large ones of bytes and of floats, a small one."""
    folder = tmp_path_factory.mktemp("buffers")
    paths = [folder / name for name in ("bytes", "floats", "small")]
    side = 256
    counts = SIZES["bytes"] // (3 * side**2), SIZES["floats"] // (12 * side**2)
    SourceBuffer(torch.full((counts[0], 3, side, side), 51, dtype=torch.uint8), augment="none").save(paths[0])
    SourceBuffer(torch.full((counts[1], 3, side, side), -1.5), augment="none").save(paths[1])
    SourceBuffer(pixels(100), augment="cifar100", seed=3).save(paths[2])
    assert all(path.stat().st_size > 0.98 * SIZES[path.name] for path in paths[:2])
    command = [sys.executable, "-c", SCRIPT, *map(str, paths)]
    answer = forks.run(command)
    for path in paths:
        path.unlink()
    assert answer.returncode == 0, answer.stderr
    found: dict[str, Any] = json.loads(answer.stdout)
    return found


@pytest.mark.process
@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="asks Linux for the resident memory")
@pytest.mark.parametrize(("kind", "value"), [("bytes", 0.2), ("floats", -1.5)])
def test_loading_maps_the_file_and_reads_only_what_is_used(elsewhere: dict[str, Any], kind: str, value: float) -> None:
    found = elsewhere[kind]
    assert found["loaded"] < 0.1 * SIZES[kind]
    assert found["read"] < 0.5 * SIZES[kind]
    assert found["sum"] == pytest.approx(8 * 3 * 256**2 * value)
    assert found["length"] == SIZES[kind] // ((3 if kind == "bytes" else 12) * 256**2)


@pytest.mark.process
def test_kept_augmentations_are_the_same_in_another_process(elsewhere: dict[str, Any]) -> None:
    here = SourceBuffer(pixels(100), augment="cifar100", seed=3)
    here.batch(70, 3)
    assert hashlib.sha256(here.batch(0, 100).numpy().tobytes()).hexdigest() == elsewhere["hash"]


def test_threads_share_a_buffer_and_get_what_one_would() -> None:
    expected = SourceBuffer(pixels(200), augment="rotate").batch(0, 200)
    state = torch.get_rng_state()
    for _ in range(5):
        buffer = SourceBuffer(pixels(200), augment="rotate")
        with ThreadPoolExecutor(4) as pool:
            found = list(pool.map(buffer.batch, range(0, 200, 50), [50] * 4))
        assert torch.equal(torch.cat(found), expected)
    assert torch.equal(torch.get_rng_state(), state)
