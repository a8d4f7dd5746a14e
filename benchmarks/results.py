"""Where benchmarks save what they measured: benchmarks/results/<processor>/, from which docs/speed.md is written."""

from __future__ import annotations

import contextlib
import datetime
import io
import json
import os
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from cretta.accelerate import describe_kernels, kernel_setting, processor_name

FOLDER = Path(__file__).parent / "results"


def machine() -> dict[str, Any]:
    """Return what times depend on."""
    return {
        "processor": processor_name(),
        "instructions": torch.backends.cpu.get_cpu_capability(),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "torch": torch.__version__,
        "kernels": f"{describe_kernels()} (CRETTA_KERNELS={kernel_setting()})",
        "date": datetime.date.today().isoformat(),
    }


def file(name: str, folder: Path = FOLDER) -> Path:
    """Return the file ``name`` of this machine's processor."""
    processor = re.sub(r"[^a-z0-9]+", "-", f"{processor_name()} {os.cpu_count()} cores".lower()).strip("-")
    return folder / processor / name


def save(name: str, content: dict[str, Any], folder: Path = FOLDER) -> Path:
    """Write JSON, at once or not at all."""
    path = file(name, folder)
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_suffix(".tmp")
    temporary.write_text(json.dumps(content, indent=1, ensure_ascii=False) + "\n")
    temporary.replace(path)
    return path


def load(name: str, folder: Path = FOLDER) -> dict[str, Any]:
    """Return what was saved for this processor, or an empty dictionary."""
    path = file(name, folder)
    content: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {}
    return content


class _Both(io.StringIO):
    """Remembers what is printed, and prints it."""

    def __init__(self, stream: Any) -> None:
        super().__init__()
        self.stream = stream

    def write(self, text: str) -> int:
        self.stream.write(text)
        self.stream.flush()
        return super().write(text)


@contextlib.contextmanager
def printed(name: str) -> Iterator[None]:
    """Save what is printed in this block, with the command and the machine, as ``name``.json; not if it raises."""
    both = _Both(sys.stdout)
    with contextlib.redirect_stdout(both):
        yield
    command = " ".join(["python", f"benchmarks/{Path(sys.argv[0]).name}", *sys.argv[1:]])
    save(f"{name}.json", {"command": command, "machine": machine(), "output": both.getvalue().rstrip("\n")})
