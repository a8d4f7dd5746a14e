"""Compiles ``src/cretta/kernels.c`` when the package is built or installed, if there is a C compiler.

Without one, or if it fails, cretta works as well, on PyTorch's own operations.
"""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sysconfig
import tempfile
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class Kernels(BuildHookInterface[Any]):
    """Puts the compiled kernels into wheels, and beside their source for editable installs."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Before files are gathered."""
        home = Path(self.root) / "src/cretta"
        self._folder = tempfile.TemporaryDirectory()
        library = (home if version == "editable" else Path(self._folder.name)) / "_kernels.so"
        library.unlink(missing_ok=True)  # one of another version is worse than none
        wrong = build(home / "kernels.c", library)
        if wrong is not None:
            self.app.display_warning(f"cretta's own kernels are left out: {wrong}")
        elif version != "editable":
            platform = sysconfig.get_platform().replace("-", "_").replace(".", "_")
            build_data["force_include"][str(library)] = "cretta/_kernels.so"
            build_data["pure_python"] = False
            build_data["tag"] = f"py3-none-{platform}"

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        """When the wheel is made."""
        self._folder.cleanup()


def build(source: Path, library: Path) -> str | None:
    """Compiles ``source``; what went wrong, if something did."""
    compiler = shlex.split(os.environ.get("CC", "cc"))
    if os.name != "posix" or shutil.which(compiler[0]) is None:
        return f"there is no C compiler ({compiler[0]})"
    command = [*compiler, "-O3", "-std=gnu11", "-fPIC", "-shared", str(source), "-o", str(library), "-lm"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        return f"{shlex.join(command)} failed: {done.stderr.strip()}"
    return None
