"""The store of results: a Parquet file per run, named by its key and written atomically."""

from __future__ import annotations

import functools
import hashlib
import json
import os
import platform
import re
import subprocess
from collections.abc import Iterator
from contextlib import AbstractContextManager
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import torch

from cretta.accelerate import kernel_setting, missing_kernels, recorded_choices
from cretta.bench.result import Result, rows_of, table_of
from cretta.bench.run import Run
from cretta.errors import StateError
from cretta.storage import atomic_write, lock
from cretta.storage.files import make_folder

_METADATA = b"cretta"
FORMAT = 2
"""Version of the file format."""
_OWN = re.compile(r"\w{24}\.(parquet|lock)|paper-\w+")
"""Names by which the folder of a store is recognized."""


class Store:
    """A folder of results.

    ``<key>.parquet`` holds the rows of a run, and in its metadata everything else; ``<key>.lock`` is held by the
    process that works on it, and released by the system if that dies. `cretta reproduce` writes ``models/`` and
    ``paper-<scale>/``.
    """

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder)
        if self.folder.exists() and not self.folder.is_dir():
            raise StateError(f"{self.folder} is a file: give a folder for results.")
        make_folder(self.folder)
        files = {path.name for path in self.folder.iterdir() if not path.name.startswith(".")}
        if (others := sorted(files - {"models"})) and not any(map(_OWN.fullmatch, others)):
            raise StateError(
                f"store={str(self.folder)!r}: expected a folder of results, or an empty or new one, got one that holds "
                f"{others[0]}; give another folder."
            )
        self.damaged: set[Path] = set()
        """Files that this object could not read; they count as missing."""

    def path(self, key: str) -> Path:
        """Return the file of the result with this key."""
        return self.folder / f"{key}.parquet"

    def keys(self) -> list[str]:
        """Return the keys of all results, sorted."""
        return sorted(path.stem for path in self.folder.glob("*.parquet") if _OWN.fullmatch(path.name))

    def __contains__(self, key: str) -> bool:
        return self.path(key).is_file()

    def __iter__(self) -> Iterator[Result]:
        for key in self.keys():
            result = self.get(key)
            if result is not None:
                yield result

    def get(self, key: str) -> Result | None:
        """Return a result; None if it is missing or damaged."""
        path = self.path(key)
        try:
            content = path.read_bytes()
        except FileNotFoundError:
            return None
        except OSError as error:
            raise StateError(f"{path} cannot be read: {error}.") from error
        try:
            table = pq.read_table(pa.BufferReader(content))
            metadata = json.loads(table.schema.metadata[_METADATA])
            fields, rows = metadata["result"], table.replace_schema_metadata(None)
            damaged = metadata["checksum"] != _checksum(rows, fields) or fields["key"] != key
        # A damaged Parquet file raises ArrowInvalid, OSError, KeyError and more, depending on the position.
        except (pa.ArrowException, OSError, ValueError, KeyError, TypeError):
            damaged = True
        if damaged:
            self.damaged.add(path)
            return None
        try:
            if metadata["format"] != FORMAT:
                raise ValueError(f"format {metadata['format']}")
            return Result(**{**fields, "run": Run.from_description(fields["run"]), "rows": rows_of(rows)})
        except (ValueError, KeyError, TypeError) as error:
            raise StateError(
                f"{path} was written by another version of cretta ({error}; this one reads format {FORMAT}): use that "
                "version, or another store."
            ) from error

    def put(self, result: Result) -> None:
        """Write a result."""
        fields = {"key": result.key, "cost": result.cost, "provenance": result.provenance, "run": result.run.describe()}
        rows = table_of(result.rows)
        content = {"format": FORMAT, "result": fields, "checksum": _checksum(rows, fields)}
        table = rows.replace_schema_metadata({_METADATA: json.dumps(content, sort_keys=True).encode()})
        for temporary in self.folder.glob(f".{result.key}.parquet.*"):  # of a process that was killed while it wrote
            temporary.unlink(missing_ok=True)
        with atomic_write(self.path(result.key)) as temporary:
            pq.write_table(table, temporary)

    def claim(self, key: str) -> AbstractContextManager[bool]:
        """Lock a run; the context is whether this process has the lock, which ends with the process."""
        return lock(self.folder / f"{key}.lock")


def provenance(input_fingerprints: dict[str, str], device: torch.device) -> dict[str, Any]:
    """Return what else a result depends on, or may depend on."""
    packages = ("cretta", "torch", "numpy", "kornia", "pillow")
    return {
        "materials": input_fingerprints,
        "versions": {"python": platform.python_version(), **{name: _version(name) for name in packages}},
        "commit": _commit(),
        "machine": {
            "system": platform.system(),
            "processor": platform.machine(),
            "cores": os.cpu_count(),
            "threads": torch.get_num_threads(),
            "kernels": {"setting": kernel_setting(), "unused": missing_kernels(), "choices": recorded_choices()},
            "device": torch.cuda.get_device_name(device) if device.type == "cuda" else device.type,
        },
    }


_version = functools.cache(version)  # which reads and parses a file


@functools.cache
def _commit() -> str | None:
    """Return the commit of the code that runs, at the first call, if it is in a repository of its own."""
    command = ["git", "-C", str(Path(__file__).parent), "describe", "--always", "--dirty", "--abbrev=12"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=10, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() or None


def _checksum(rows: pa.Table, fields: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps([rows.to_pylist(), fields], sort_keys=True).encode()).hexdigest()
