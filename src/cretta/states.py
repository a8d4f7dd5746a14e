"""Tensors and facts in one safetensors file, written whole or not at all."""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from cretta.errors import StateError

_KEY = "cretta"


def write(path: str | os.PathLike[str], tensors: Mapping[str, Tensor], facts: Mapping[str, Any]) -> None:
    """Writes ``tensors`` and JSON-able ``facts`` beside ``path``, then moves the file into place."""
    target = Path(path)
    if not target.parent.is_dir():
        raise StateError(f"cannot write {target}: the folder {target.parent} does not exist; make it first.")
    ready = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    handle, temporary = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}.")
    os.close(handle)
    try:
        save_file(ready, temporary, metadata={_KEY: json.dumps(facts)})
        with open(temporary, "rb") as written:
            os.fsync(written.fileno())
        os.replace(temporary, target)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise


def read(path: str | os.PathLike[str], kind: str) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Reads what :func:`write` wrote; tensors are memory-mapped. ``kind`` must be the one in its facts."""
    if not Path(path).is_file():
        raise StateError(f"{path}: no such file; needed is a {kind} saved by cretta.")
    try:
        with safe_open(path, framework="pt") as file:
            facts = json.loads((file.metadata() or {}).get(_KEY, "{}"))
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118  (not a mapping)
    except (SafetensorError, json.JSONDecodeError, OSError) as wrong:
        raise StateError(f"{path}: not a readable {kind} ({wrong}); it may be damaged, save it anew.") from wrong
    if facts.get("kind") != kind:
        raise StateError(f"{path}: holds {facts.get('kind', 'something not saved by cretta')!r}, not a {kind}.")
    return tensors, facts


def fingerprint(tensors: Iterable[Tensor | str]) -> str:
    """SHA-256 of tensors (dtype, shape, bytes) and strings, in order."""
    digest = hashlib.sha256()
    for item in tensors:
        if isinstance(item, str):
            digest.update(item.encode())
            continue
        digest.update(f"{item.dtype}{tuple(item.shape)}".encode())
        digest.update(item.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().data)
    return digest.hexdigest()
