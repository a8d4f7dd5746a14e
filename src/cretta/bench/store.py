"""Where results are kept: a Parquet file a run, named by its key, whole or not there at all."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
import platform
import shutil
import subprocess
import uuid
from collections.abc import Iterator
from contextlib import AbstractContextManager
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import torch

from cretta.accelerate import missing_kernels
from cretta.bench.result import BatchRow, Result
from cretta.errors import StateError
from cretta.storage import atomic_write, lock

_METADATA = b"cretta"
FORMAT = 1
"""Of the files: what reads them must know it."""
_TYPES: dict[str, pa.DataType] = {
    "int": pa.int64(),
    "float": pa.float64(),
    "str": pa.string(),
    "bool": pa.bool_(),
    "float | None": pa.float64(),
    "tuple[int, ...]": pa.list_(pa.int64()),
    "tuple[float, ...]": pa.list_(pa.float64()),
}
_SCHEMA = pa.schema([(field.name, _TYPES[str(field.type)]) for field in dataclasses.fields(BatchRow)])


class Store:
    """A folder of results.

    ``<key>.parquet`` holds a run's batches, and in its metadata all else; ``<key>.unfinished/`` where a long run is;
    ``<key>.lock`` is held by the process that works on it, and let go by the system if that dies; ``damaged/`` is
    where unreadable files go.
    """

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder)
        if self.folder.exists() and not self.folder.is_dir():
            raise StateError(f"{self.folder} is a file: give a folder for results.")
        self.folder.mkdir(parents=True, exist_ok=True)
        self.set_aside: list[Path] = []
        """Damaged files that were moved away by this object."""

    def path(self, key: str) -> Path:
        """Where the result with this key is, or will be."""
        return self.folder / f"{key}.parquet"

    def unfinished(self, key: str) -> Path:
        """Where a run with this key notes how far it is."""
        return self.folder / f"{key}.unfinished"

    def keys(self) -> list[str]:
        """Keys of all results, sorted."""
        return sorted(path.stem for path in self.folder.glob("*.parquet") if not path.name.startswith("."))

    def __contains__(self, key: str) -> bool:
        return self.path(key).is_file()

    def __iter__(self) -> Iterator[Result]:
        for key in self.keys():
            if (found := self.get(key)) is not None:
                yield found

    def get(self, key: str) -> Result | None:
        """The result, or None; a damaged file is set aside, as if it had never been there."""
        path = self.path(key)
        try:
            content = path.read_bytes()
        except FileNotFoundError:
            return None
        except OSError as wrong:
            raise StateError(f"{path} cannot be read: {wrong}.") from wrong
        try:
            table = pq.read_table(pa.BufferReader(content))
            told = json.loads(table.schema.metadata[_METADATA])
            if told["format"] != FORMAT:
                raise StateError(
                    f"{path} is of format {told['format']}, this cretta reads {FORMAT}: use the version that wrote it, "
                    "or another store."
                )
            rows = tuple(BatchRow(**{k: _tupled(v) for k, v in row.items()}) for row in table.to_pylist())
            if told["checksum"] != _checksum(rows, told["result"]) or told["result"]["key"] != key:
                raise ValueError("the content does not match its checksum")
            return Result(rows=rows, **told["result"])
        except StateError:
            raise
        # A damaged Parquet file raises ArrowInvalid, OSError, KeyError and more, by the place of the fault.
        except (pa.ArrowException, OSError, ValueError, KeyError, TypeError):
            self._set_aside(path)
            return None

    def _set_aside(self, path: Path) -> None:
        aside = self.folder / "damaged" / f"{path.name}.{uuid.uuid4().hex[:8]}"
        try:
            aside.parent.mkdir(exist_ok=True)
            os.replace(path, aside)
        except FileNotFoundError:  # another process was first
            return
        except OSError as wrong:
            raise StateError(f"{path} is damaged, and cannot be set aside: {wrong}.") from wrong
        self.set_aside.append(aside)

    def put(self, result: Result) -> None:
        """Writes a result, whole or not at all, and forgets the notes of its run."""
        told = {each.name: getattr(result, each.name) for each in dataclasses.fields(Result) if each.name != "rows"}
        content = {"format": FORMAT, "result": told, "checksum": _checksum(result.rows, told)}
        table = pa.Table.from_pylist([dataclasses.asdict(row) for row in result.rows], schema=_SCHEMA)
        table = table.replace_schema_metadata({_METADATA: json.dumps(content, sort_keys=True).encode()})
        for left in self.folder.glob(f".{result.key}.parquet.*"):  # by a process that was killed while it wrote
            left.unlink(missing_ok=True)
        with atomic_write(self.path(result.key)) as temporary:
            pq.write_table(table, temporary)
        self.forget(result.key)

    def forget(self, key: str) -> None:
        """Remove the notes of an unfinished run; another process may do the same at the same time."""
        shutil.rmtree(self.unfinished(key), ignore_errors=True)

    def claim(self, key: str) -> AbstractContextManager[bool]:
        """Whether this process may work on the run; another that does holds it until it ends, however it ends."""
        return lock(self.folder / f"{key}.lock")


def provenance(materials: dict[str, str], device: torch.device) -> dict[str, Any]:
    """What else a result depends on, or might."""
    packages = ("cretta", "torch", "numpy", "kornia", "pillow")
    return {
        "materials": materials,
        "versions": {"python": platform.python_version(), **{name: version(name) for name in packages}},
        "commit": _commit(),
        "machine": {
            "system": platform.system(),
            "processor": platform.machine(),
            "cores": os.cpu_count(),
            "threads": torch.get_num_threads(),
            "kernels": missing_kernels() is None,
            "device": torch.cuda.get_device_name(device) if device.type == "cuda" else device.type,
        },
    }


def _commit() -> str | None:
    """Of the code that runs, if it lies in a repository of its own."""
    try:
        asked = ["git", "-C", str(Path(__file__).parent), "describe", "--always", "--dirty", "--abbrev=12"]
        told = subprocess.run(asked, capture_output=True, text=True, timeout=10, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return told.stdout.strip() or None


def _checksum(rows: tuple[BatchRow, ...], told: dict[str, Any]) -> str:
    content = json.dumps([[dataclasses.asdict(row) for row in rows], told], sort_keys=True)
    return hashlib.sha256(content.encode()).hexdigest()


def _tupled(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value
