"""Compile the custom CPU kernels when the package is built or installed on Linux with a C compiler.

Without them, cretta uses PyTorch's operations. The environment variable ``CRETTA_WHEEL`` requests a kind of wheel:
``kernels`` (an error if they cannot be compiled) or ``any`` (without them, for every system); by default they are
compiled where that is possible.
"""

from __future__ import annotations

import os
import platform
import shlex
import subprocess
import sys
import tempfile
import zlib
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

KINDS = ("", "kernels", "any")


class Kernels(BuildHookInterface[Any]):
    """Put the compiled kernels into wheels, or beside their source for editable installs."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Compile, before hatch collects the files."""
        self._folder = tempfile.TemporaryDirectory()
        kind = os.environ.get("CRETTA_WHEEL", "")
        if kind not in KINDS:
            raise ValueError(f"CRETTA_WHEEL: expected 'kernels' or 'any', got {kind!r}")
        if kind == "any":
            return
        home = Path(self.root) / "src/cretta/accelerate"
        library = (home if version == "editable" else Path(self._folder.name)) / "_kernels.so"
        try:
            library.unlink(missing_ok=True)  # one of another version would be rejected
            build(home, library)
        except (OSError, ValueError, subprocess.SubprocessError) as error:
            message = getattr(error, "stderr", None) or ""
            problem = f"the custom CPU kernels are not compiled: {error} {message}".strip()
            if kind == "kernels":
                raise RuntimeError(problem) from error
            self.app.display_warning(problem)
            return
        if version != "editable":
            build_data["force_include"][str(library)] = "cretta/accelerate/_kernels.so"
            build_data["pure_python"] = False
            build_data["tag"] = "py3-none-linux_x86_64"

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        """Remove temporary files, when the wheel is complete."""
        self._folder.cleanup()


def build(home: Path, library: Path) -> None:
    """Compile the C files in ``home`` to ``library``."""
    if sys.platform != "linux" or platform.machine() != "x86_64":
        raise OSError(f"expected Linux on x86-64, got {sys.platform} on {platform.machine()}")
    compiler = shlex.split(os.environ.get("CC") or "cc")
    checksum = zlib.crc32(b"".join(file.read_bytes() for file in sorted(home.glob("kernels*.[ch]"))))
    options = ["-O3", "-std=gnu11", "-fPIC", "-shared", f"-DINTERFACE={checksum}u"]
    command = [*compiler, *options, str(home / "kernels.c"), "-o", str(library), "-lm"]
    subprocess.run(command, capture_output=True, text=True, check=True)
