"""The files that are published: complete, and the kernels in the wheel run without a compiler."""

from __future__ import annotations

import ctypes
import runpy
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from cretta.accelerate import kernels

ROOT = Path(__file__).parent.parent
BUILD = ROOT / "scripts" / "build_dist.py"
needs_linux = pytest.mark.skipif(
    sys.platform != "linux" or shutil.which("cc") is None or not BUILD.is_file(),
    reason="needs Linux, a C compiler and the repository",
)
LIBRARY = "cretta/accelerate/_kernels.so"


@needs_linux
@pytest.mark.slow
@pytest.mark.process
def test_a_source_archive_and_two_wheels_are_built(tmp_path: Path) -> None:
    paths = {path.name.split("-", 2)[-1]: path for path in runpy.run_path(str(BUILD))["build"](ROOT, tmp_path)}
    assert set(paths) == {"py3-none-any.whl", "py3-none-manylinux_2_28_x86_64.whl"} | {
        name for name in paths if name.endswith(".tar.gz")
    }
    assert len(paths) == 3
    with zipfile.ZipFile(paths["py3-none-any.whl"]) as wheel:
        anywhere = set(wheel.namelist())
    with zipfile.ZipFile(paths["py3-none-manylinux_2_28_x86_64.whl"]) as wheel:
        linux = set(wheel.namelist())
        wheel.extract(LIBRARY, tmp_path)
    assert not [name for name in anywhere if name.endswith(".so")]
    assert {name for name in linux - anywhere if not name.endswith("/")} == {LIBRARY}
    interface = ctypes.CDLL(str(tmp_path / LIBRARY)).cretta_interface
    interface.restype = ctypes.c_uint
    assert interface() == kernels.checksum()


@needs_linux
@pytest.mark.process
def test_a_wheel_that_must_have_kernels_is_not_built_without_a_compiler(tmp_path: Path) -> None:
    code = f"from hatchling.builders.wheel import WheelBuilder as W; list(W('.').build(directory=r'{tmp_path}'))"
    for kind, message in {"kernels": "the custom CPU kernels are not compiled", "other": "expected 'kernels'"}.items():
        done = subprocess.run(
            [sys.executable, "-c", code], cwd=ROOT, env={"CC": "no-such-compiler", "CRETTA_WHEEL": kind, "PATH": ""},
            capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert done.returncode != 0
        assert message in done.stderr
    assert not list(tmp_path.iterdir())
