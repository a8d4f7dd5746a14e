"""A forked process is what a new interpreter would be, but for the time that it takes to import."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import forks
import processes

pytestmark = pytest.mark.process
ENDS = {
    "print('out'); import sys; print('error', file=sys.stderr); sys.exit(5)": 5,
    "raise ValueError('a reason')": 1,
    "raise KeyboardInterrupt": -signal.SIGINT,
    "import os; os.kill(os.getpid(), 9)": -signal.SIGKILL,
    "import atexit; atexit.register(print, 'last')": 0,
    "import threading; threading.Timer(0.01, print, ['of a thread']).start()": 0,
}


@pytest.mark.parametrize("code", ENDS)
def test_it_ends_as_an_interpreter_does(code: str) -> None:
    forked, new = (start([sys.executable, "-c", code]) for start in (forks.run, processes.run))
    assert (forked.returncode, forked.stdout) == (new.returncode, new.stdout)
    assert forked.returncode == ENDS[code]
    assert forked.stderr.splitlines()[-1:] == new.stderr.splitlines()[-1:]


def test_it_has_its_own_arguments_folder_environment_and_path(tmp_path: Path) -> None:
    (tmp_path / "beside.py").touch()
    (tmp_path / "path").mkdir()
    (tmp_path / "path" / "named.py").touch()
    code = "import os, sys, beside, named; print(sys.argv[1:], os.getcwd(), os.environ)"
    environment = {"PYTHONPATH": str(tmp_path / "path"), "COLOR": "red"}
    done = forks.run([sys.executable, "-c", code, 1, "two"], cwd=tmp_path, env=environment)
    assert done.stdout == f"['1', 'two'] {tmp_path} environ({environment!r})\n", done.stderr


def test_it_has_pytorch_with_one_thread_and_not_the_command_line() -> None:
    code = (
        "import os, sys; before = set(sys.modules); import torch\n"
        "x = torch.ones(300, 300, requires_grad=True); (x @ x).sum().backward()\n"
        "print('torch' in before, 'cretta.cli' in before, torch.get_num_threads(), len(os.listdir('/proc/self/task')))"
    )
    assert forks.run([sys.executable, "-c", code]).stdout == "True False 1 1\n"


def test_it_takes_signals_and_ends_with_its_context() -> None:
    # A signal that arrives between two instructions is noticed after the next one: none may take an hour.
    code = "import time; print('begun', flush=True)\nwhile True: time.sleep(0.1)"
    with forks.Process([sys.executable, "-c", code], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "begun\n"
        assert process.poll() is None
        assert process.pid != os.getpid()
    assert process.returncode == -signal.SIGKILL
    with forks.Process([sys.executable, "-c", code], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "begun\n"
        process.send_signal(signal.SIGINT)
        assert process.wait() == -signal.SIGINT
