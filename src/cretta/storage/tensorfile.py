"""Tensors, JSON facts and a SHA-256 checksum in one safetensors file."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from cretta.errors import StateError
from cretta.storage.files import atomic_write, check_target

_KEY = "cretta"


def write(path: str | os.PathLike[str], tensors: Mapping[str, Tensor], facts: Mapping[str, Any]) -> None:
    """Write ``tensors`` and JSON-able ``facts`` to ``path``, atomically."""
    target = Path(path)
    check_target(target)
    ready = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    # One entry: safetensors writes several in no fixed order, and equal content should make equal files.
    metadata = {_KEY: json.dumps({"facts": facts, "sha256": _checksum(ready, facts)})}
    with atomic_write(target) as temporary:
        temporary.touch(mode=0o666)
        mode = temporary.stat().st_mode  # as the umask has it; save_file would let only the owner read
        try:
            save_file(ready, temporary, metadata=metadata)
        except SafetensorError as error:
            raise OSError(str(error)) from error
        temporary.chmod(mode)


def read(
    path: str | os.PathLike[str], kind: str, *, verify: bool = True, remedy: str = ""
) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Return the memory-mapped tensors and the facts that :func:`write` wrote; ``kind`` must be the one in the facts.

    ``verify`` reads everything once and compares it with the checksum in the file. ``remedy``, how to save one, ends
    the messages on files of another kind.
    """
    if not Path(path).is_file():
        state = "is a folder" if Path(path).is_dir() else "no such file"
        raise StateError(f"{path}: {state}; expected a {kind} saved by cretta. {remedy}".rstrip())
    try:
        with safe_open(path, framework="pt") as file:
            content = json.loads((file.metadata() or {}).get(_KEY, "null"))
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118  (not a mapping)
    except (SafetensorError, json.JSONDecodeError, UnicodeDecodeError, OSError) as error:
        raise StateError(f"{path}: not a readable {kind} ({error}); it may be damaged, save it again.") from error
    facts = content.get("facts") if isinstance(content, dict) else None
    if not isinstance(facts, dict):
        raise StateError(f"{path}: holds something not saved by cretta, not a {kind}. {remedy}".rstrip())
    if facts.get("kind") != kind:
        raise StateError(f"{path}: holds {facts.get('kind')!r}, not a {kind}. {remedy}".rstrip())
    if verify and content.get("sha256") != _checksum(tensors, facts):
        raise StateError(f"{path}: the content does not match its checksum; the file is damaged, save it again.")
    return tensors, facts


def _checksum(tensors: Mapping[str, Tensor], facts: Mapping[str, Any]) -> str:
    parts: list[Tensor | str] = [json.dumps(facts, sort_keys=True)]
    for name in sorted(tensors):
        parts += [name, tensors[name]]
    return fingerprint(parts)


def fingerprint(parts: Iterable[Tensor | str]) -> str:
    """Return the SHA-256 of tensors (dtype, shape, bytes) and strings, in order."""
    digest = hashlib.sha256()
    for part in parts:
        if isinstance(part, str):
            text = part.encode()
            digest.update(f"text {len(text)} ".encode() + text)
            continue
        digest.update(f"tensor {part.dtype} {tuple(part.shape)} ".encode())
        digest.update(part.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().data)
    return digest.hexdigest()
