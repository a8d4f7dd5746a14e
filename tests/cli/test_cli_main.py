"""The command line as a whole: how it is started, its help, its messages."""

from __future__ import annotations

import subprocess
import sys


def test_python_m_cretta() -> None:
    done = subprocess.run([sys.executable, "-m", "cretta", "--version"], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout.split()[0], done.stderr) == (0, "cretta", "")
