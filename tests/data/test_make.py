import os
import signal
import sys
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

import forks
from cretta.data import ArrayDataset, CorruptedDataset, corrupt, embedded, image_folder, numpy_file
from cretta.data.corruptions import photographs
from cretta.data.make import Maker
from cretta.data.output import MANIFEST
from cretta.errors import OptionError, StateError
from processes import ENVIRONMENT


def clean(count: int = 40) -> ArrayDataset:
    test = embedded("test")
    return ArrayDataset("cifar10", test.images[:count], test.labels[:count], test.classes)


def photos(folder: Path, count: int = 20) -> Path:
    """Images of two sizes in two classes, as JPEG and PNG."""
    for number, image in enumerate(embedded("test").images[:count]):
        path = folder / ("cat", "dog")[number % 2] / f"{number}.{('JPEG', 'png')[number % 3 == 0]}"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(image[: 28 + 4 * (number % 4 == 0)]).save(path)
    return folder


def tree(folder: Path) -> dict[str, bytes]:
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_arrays_are_those_of_numpy_with_the_severities_one_after_the_other(tmp_path: Path) -> None:
    source = clean()
    heard: list[tuple[str, int, int]] = []
    made = Maker(corruptions=["fog", "snow", "fog"], seed=3, progress=lambda *call: heard.append(call)).arrays(
        source, tmp_path / "out"
    )
    assert (made.new, made.present) == (400, 0)
    for name in ("fog", "snow"):
        whole = np.concatenate([corrupt(source.images, name, severity, seed=3) for severity in range(1, 6)])
        np.save(tmp_path / "expected.npy", whole)
        assert (tmp_path / "out" / f"{name}.npy").read_bytes() == (tmp_path / "expected.npy").read_bytes()
    # The type of the published labels: saved so, those of CIFAR-100-C have their published MD5.
    np.save(tmp_path / "expected.npy", np.tile(source.labels, 5).astype(np.uint8))
    assert (tmp_path / "out" / "labels.npy").read_bytes() == (tmp_path / "expected.npy").read_bytes()
    assert [domain for domain, _, _ in heard][:5] == [f"fog/{severity}" for severity in range(1, 6)]
    assert sum(count for _, count, _ in heard) == heard[0][2] == 400
    read = numpy_file(made.folder / "fog.npy", made.folder / "labels.npy")
    assert np.array_equal(read.read([40 * 4 + 7])[0], CorruptedDataset(source, "fog", 5, seed=3)[7][0])


def test_more_images_than_are_made_at_once(tmp_path: Path) -> None:
    test = embedded("test")
    Maker(corruptions=["impulse_noise"]).arrays(test, tmp_path / "out")
    made = np.load(tmp_path / "out" / "impulse_noise.npy")
    for severity in (1, 5):
        assert np.array_equal(
            made[2000 * (severity - 1) : 2000 * severity], corrupt(test.images, "impulse_noise", severity)
        )


def test_a_second_call_makes_only_what_is_missing(tmp_path: Path) -> None:
    source, out = clean(), tmp_path / "out"
    Maker(corruptions=["fog"]).arrays(source, out)
    os.utime(out / "fog.npy", (0, 0))
    made = Maker(corruptions=["fog", "contrast"]).arrays(source, out)
    assert (made.new, made.present) == (200, 200)
    assert (out / "fog.npy").stat().st_mtime_ns == 0
    Maker(corruptions=["contrast", "fog"], workers=3).arrays(source, tmp_path / "once")
    assert tree(out) == tree(tmp_path / "once")
    for options, message in (
        ({"seed": 1}, "seed was 0 and is 1"),
        ({"parameters": "tiny"}, 'parameters was null and is "tiny"'),
    ):
        with pytest.raises(StateError, match=message):
            Maker(corruptions=["fog"], **options).arrays(source, out)
    with pytest.raises(StateError, match="source was"):
        Maker(corruptions=["fog"]).arrays(clean(41), out)


@pytest.mark.parametrize("workers", [1, 2, 5])
def test_files_are_the_corrupted_dataset_to_the_bit(tmp_path: Path, workers: int) -> None:
    source = photos(tmp_path / "photos")
    made = Maker(corruptions=["fog", "glass_blur"], severities=[2, 5], seed=1, workers=workers).folder(source)
    assert (made.folder, made.new, made.present) == (tmp_path / "photos-C", 80, 0)
    for name in ("fog", "glass_blur"):
        for severity in (2, 5):
            expected = CorruptedDataset(image_folder(source), name, severity, seed=1)
            read = image_folder(made.folder / name / str(severity))
            assert read.classes == ("cat", "dog")
            assert [file.stem for file in read.files] == [file.stem for file in image_folder(source).files]
            for index in range(20):
                assert np.array_equal(read[index][0], expected[index][0])
                assert read[index][1] == expected[index][1]


def test_jpeg_keeps_names_and_comes_close(tmp_path: Path) -> None:
    source = photos(tmp_path / "photos")
    out = Maker(corruptions=["brightness"], severities=[3]).folder(source, tmp_path / "out", format="jpeg").folder
    names = {path.relative_to(out / "brightness/3").as_posix() for path in out.rglob("*.*") if path.name != MANIFEST}
    assert {"cat/2.JPEG", "cat/0.jpg", "dog/1.JPEG"} <= names
    assert len(names) == 20
    with Image.open(out / "brightness/3/cat/2.JPEG") as file:
        assert file.format == "JPEG"
        tables = file.quantization  # type: ignore[attr-defined]
    Image.new("RGB", (8, 8)).save(tmp_path / "85.jpg", quality=85)
    with Image.open(tmp_path / "85.jpg") as file:
        assert tables == file.quantization  # type: ignore[attr-defined]
    exact = CorruptedDataset(image_folder(source), "brightness", 3)
    near = image_folder(out / "brightness" / "3")
    assert np.abs(near[0][0].astype(int) - exact[0][0]).mean() < 12


def test_images_scaled_first(tmp_path: Path) -> None:
    source = photos(tmp_path / "photos")
    scaled = Maker(corruptions=["contrast"], severities=[1]).folder(source, tmp_path / "scaled", size=16)
    assert scaled.new == 20
    read = image_folder(scaled.folder / "contrast" / "1")
    assert np.array_equal(
        read.read(range(3)), CorruptedDataset(image_folder(source, size=16), "contrast", 1).read(range(3))
    )


def test_images_without_classes_and_at_any_depth(tmp_path: Path) -> None:
    for name in ("10.png", "9.png", "deep/er/1.png"):
        (tmp_path / "mix" / name).parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(embedded("test").images[0]).save(tmp_path / "mix" / name)
    out = Maker(corruptions=["snow"], severities=[1]).folder(tmp_path / "mix").folder
    assert {name for name in tree(out) if name != MANIFEST} == {f"snow/1/{name}" for name in tree(tmp_path / "mix")}
    expected = CorruptedDataset(image_folder(tmp_path / "mix", labeled=False), "snow", 1)
    made = image_folder(out / "snow" / "1", labeled=False)
    assert np.array_equal(made.read(range(3)), expected.read(range(3)))


def test_invalid_options_raise_before_any_work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source, out = photos(tmp_path / "photos", 4), tmp_path / "out"
    wrong: list[tuple[dict[str, Any], str]] = [
        ({"corruptions": ["rain"]}, "unknown corruption 'rain'"),
        ({"corruptions": []}, "give at least one of each"),
        ({"severities": [1, 6]}, "severity=6: expected an integer from 1 to 5"),
        ({"parameters": "huge"}, "parameters='huge': expected one of"),
    ]
    for options, message in wrong:
        with pytest.raises(OptionError, match=message):
            Maker(**{"corruptions": ["fog"], **options}).folder(source, out)
    with pytest.raises(OptionError, match="format='gif': give one of png, jpeg"):
        Maker(["fog"]).folder(source, out, format="gif")  # type: ignore[arg-type]
    with pytest.raises(OptionError, match="give an output beside it"):
        Maker(["fog"]).folder(source, source / "inside")
    Image.new("RGB", (4, 4)).save(source / "cat" / "0.bmp")
    with pytest.raises(OptionError, match=r"cat/0\.bmp and cat/0\.png would both become cat/0\.png: rename"):
        Maker(corruptions=["fog"]).folder(source, out)
    monkeypatch.setattr(metadata, "files", lambda name: [])
    photographs._originals.cache_clear()
    photographs._scaled.cache_clear()
    with pytest.raises(OptionError, match=r'pip install "cretta\[data\]"'):
        Maker(corruptions=["fog", "frost"]).arrays(clean(), out)
    assert not out.exists()
    assert not (source / "inside").exists()


def test_a_broken_source_stops_the_work_and_is_named(tmp_path: Path) -> None:
    source = photos(tmp_path / "photos")
    (source / "dog" / "1.JPEG").write_bytes(b"no image")
    with pytest.raises(StateError, match=r"1\.JPEG cannot be read as an image"):
        Maker(corruptions=["fog"], severities=[1]).folder(source, tmp_path / "out")
    for name, content in tree(tmp_path / "out").items():
        assert len(content) > 100, name


# Killed

MAKE = """
import sys
import numpy as np
from cretta.data import ArrayDataset
from cretta.data.make import Maker
from processes import signal_at, signal_in
"""


def killed(script: str, *arguments: object) -> None:
    """Run a script that kills itself amid a file, which it leaves unfinished in the folder named first."""
    command = [sys.executable, "-c", MAKE + script, *map(str, arguments)]
    process = forks.run(command, env=ENVIRONMENT)
    assert process.returncode == -signal.SIGKILL, process.stderr
    assert any(Path(str(arguments[0]), ".cretta-make").iterdir())


@pytest.mark.process
@pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="no SIGKILL there")
def test_killed_amid_arrays_it_goes_on_to_the_same_bits(tmp_path: Path) -> None:
    """In the third of five severities of the third array."""
    names = ["contrast", "brightness", "impulse_noise", "snow"]
    source, out = clean(), tmp_path / "out"
    np.savez(tmp_path / "source.npz", images=source.images, labels=source.labels)
    script = """
with np.load(sys.argv[2]) as saved:
    source = ArrayDataset("cifar10", saved["images"], saved["labels"], tuple("abcdefghij"))
Maker(sys.argv[3:], progress=signal_at(13, 9)).arrays(source, sys.argv[1])
"""
    killed(script, out, tmp_path / "source.npz", *names)
    present = [name for name in names if (out / f"{name}.npy").exists()]
    assert present == names[:2]
    for name in present:
        assert np.load(out / f"{name}.npy").shape == (200, 32, 32, 3)
    made = Maker(corruptions=names).arrays(source, out)
    assert (made.present, made.new) == (len(present) * 200, (4 - len(present)) * 200)
    Maker(corruptions=names, workers=2).arrays(source, tmp_path / "once")
    assert tree(out) == tree(tmp_path / "once")


@pytest.mark.process
@pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="no SIGKILL there")
def test_killed_amid_files_it_goes_on_to_the_same_bits(tmp_path: Path) -> None:
    """As the 50th of 120 is written; the other thread may be at the 49th, or at none."""
    source, out = photos(tmp_path / "photos", 30), tmp_path / "out"
    options: dict[str, Any] = {"corruptions": ["snow", "fog"], "severities": [4, 5]}
    script = "signal_in('PIL.Image:Image.save', 50, 9); Maker(workers=2, "
    killed(f"{script} **{options}).folder(sys.argv[2], sys.argv[1])", out, source)
    there = list(out.rglob("*.png"))
    assert len(there) in (48, 49)
    for path in there:
        with Image.open(path) as image:
            image.load()
    made = Maker(**options).folder(source, out)
    assert (made.present, made.new) == (len(there), 120 - len(there))
    Maker(workers=1, **options).folder(source, tmp_path / "once")
    assert tree(out) == tree(tmp_path / "once")


def test_paths_of_ones_own(tmp_path: Path) -> None:
    source = image_folder(photos(tmp_path / "photos"))
    paths = [f"n{label}/val_{index}.JPEG" for index, label in enumerate(source.labels)]
    out = Maker(corruptions=["snow"], severities=[1]).files(source, paths, tmp_path / "out", format="jpeg").folder
    assert sorted(name for name in tree(out) if name != MANIFEST) == sorted(f"snow/1/{path}" for path in paths)
