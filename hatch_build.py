"""Compile the custom CPU kernels when the package is built or installed on Linux with a C compiler.

Without them, cretta uses PyTorch's operations.
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
    """Put the compiled kernels into wheels, or beside their source for editable installs."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Compile, before hatch collects the files."""
        self._folder = tempfile.TemporaryDirectory()
        if sys.platform != "linux" or platform.machine() != "x86_64":
            return
        home = Path(self.root) / "src/cretta/accelerate"
        library = (home if version == "editable" else Path(self._folder.name)) / "_kernels.so"
        try:
            library.unlink(missing_ok=True)  # one of another version would be rejected
            build(home / "kernels.c", library)
        except (OSError, ValueError, subprocess.SubprocessError) as error:
            message = getattr(error, "stderr", None) or ""
            self.app.display_warning(f"the custom CPU kernels are not compiled: {error} {message}".strip())
            return
        if version != "editable":
            build_data["force_include"][str(library)] = "cretta/accelerate/_kernels.so"
            build_data["pure_python"] = False
            build_data["tag"] = "py3-none-linux_x86_64"

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        """Remove temporary files, when the wheel is complete."""
        self._folder.cleanup()


def build(source: Path, library: Path) -> None:
    """Compile ``source`` to ``library``."""
    compiler = shlex.split(os.environ.get("CC") or "cc")
    options = ["-O3", "-std=gnu11", "-fPIC", "-shared", f"-DINTERFACE={zlib.crc32(source.read_bytes())}u"]
    command = [*compiler, *options, str(source), "-o", str(library), "-lm"]
    subprocess.run(command, capture_output=True, text=True, check=True)
