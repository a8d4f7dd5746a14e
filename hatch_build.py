"""Compiles ``src/cretta/kernels.c`` when the package is built or installed on Linux, if there is a C compiler.

Without one, or if it fails, cretta works as well, on PyTorch's own operations.
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


class Kernels(BuildHookInterface[Any]):
    """Puts the compiled kernels into wheels, and beside their source for editable installs."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Before files are gathered."""
        self._folder = tempfile.TemporaryDirectory()
        if sys.platform != "linux" or platform.machine() != "x86_64":
            return
        home = Path(self.root) / "src/cretta"
        library = (home if version == "editable" else Path(self._folder.name)) / "_kernels.so"
        try:
            library.unlink(missing_ok=True)  # one of another version is of no use
            build(home / "kernels.c", library)
        except (OSError, ValueError, subprocess.SubprocessError) as wrong:
            said = getattr(wrong, "stderr", None) or ""
            self.app.display_warning(f"cretta's own kernels are left out: {wrong} {said}".strip())
            return
        if version != "editable":
            build_data["force_include"][str(library)] = "cretta/_kernels.so"
            build_data["pure_python"] = False
            build_data["tag"] = "py3-none-linux_x86_64"

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        """When the wheel is made."""
        self._folder.cleanup()


def build(source: Path, library: Path) -> None:
    """Compiles ``source``."""
    compiler = shlex.split(os.environ.get("CC") or "cc")
    options = ["-O3", "-std=gnu11", "-fPIC", "-shared", f"-DINTERFACE={zlib.crc32(source.read_bytes())}u"]
    command = [*compiler, *options, str(source), "-o", str(library), "-lm"]
    subprocess.run(command, capture_output=True, text=True, check=True)
