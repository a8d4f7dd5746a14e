"""Processes that do not import PyTorch again: forked from one that has imported it, and that has one thread.

A process started here is a real one: its output, its signals and its exit code are its own, and it ends as an
interpreter does. Not for tests of what a command imports: those start an interpreter, and so does one test per command.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import gc
import json
import os
import select
import signal
import socket
import subprocess
import sys
import threading
import warnings
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Self

from processes import ENVIRONMENT, LONG

PRELOADED = (
    *("numpy", "torch", "kornia.augmentation", "pyarrow.parquet", "scipy.special", "PIL.Image"),
    *(
        "matplotlib.figure",
        "matplotlib.backends.backend_agg",
        "rich.table",
        "typer",
        "fastapi",
        "uvicorn",
        "python_multipart",
    ),
    *(
        "cretta.bench",
        "cretta.data",
        "cretta.models",
        "cretta.predict",
        "cretta.report",
        "cretta.serve",
        "cretta.training",
    ),
)
"""What a command uses. Nothing of cretta.cli: it looks at the environment."""
ONE_THREAD = {
    **dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1"),
    "JE_ARROW_MALLOC_CONF": "background_thread:false",
}
PROGRAM = "import forks; exec(forks.next_process())"
LARGEST = 200_000
"""Bytes of a request."""


# In the process that all others are forked from.


def next_process() -> str:
    """Fork a process for each request; in it, return the code that it has to execute."""
    import torch

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for name in PRELOADED:
            with contextlib.suppress(ImportError):  # of an extra that is not installed
                __import__(name)
    torch.set_num_threads(1)
    gc.collect()
    gc.freeze()  # otherwise each process spends a second on them at its end
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the tests and for the processes
    requests = socket.socket(fileno=int(sys.argv[1]))
    while True:
        request, files, _, _ = socket.recv_fds(requests, LARGEST, 4)
        with contextlib.suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        if not request:  # the tests have ended
            sys.exit()
        threads = len(os.listdir("/proc/self/task")) if sys.platform == "linux" else threading.active_count()
        assert threads == 1, "a process with several threads cannot be forked"
        if not os.fork():
            requests.close()
            process = os.fork()
            if not process:
                return _begin(json.loads(request), files)
            _report(process, files)
        for file in files:
            os.close(file)


def _report(process: int, files: list[int]) -> None:
    """Tell who asked for a process its number, wait, and tell its exit code."""
    *standard, answer = files
    for file in standard:
        os.close(file)
    with contextlib.suppress(BrokenPipeError):
        os.write(answer, f"{process}\n".encode())
        _, status = os.waitpid(process, 0)
        os.write(answer, f"{os.waitstatus_to_exitcode(status)}\n".encode())
    os._exit(0)


def _begin(request: dict[str, Any], files: list[int]) -> str:
    """Become what a new interpreter with these arguments is."""
    *standard, answer = files
    os.close(answer)
    for number, file in enumerate(standard):
        os.dup2(file, number)
        os.close(file)
    os.environ.clear()
    os.environ.update(request["env"])
    os.chdir(request["cwd"])
    for stream in (sys.stdout, sys.stderr):
        # A TextIOWrapper, which the types of sys do not say.
        stream.reconfigure(write_through="PYTHONUNBUFFERED" in os.environ)  # type: ignore[union-attr]
    sys.argv = ["-c", *request["arguments"]]
    path = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    sys.path = list(dict.fromkeys(["", *filter(None, path), *sys.path]))
    signal.signal(signal.SIGINT, signal.default_int_handler)
    code: str = request["code"]
    return code


# In the tests.


class Process:
    """A process that executes a command ``[sys.executable, "-c", code, …]``, with what is used of subprocess.Popen.

    Leaving the context ends it.
    """

    def __init__(
        self,
        command: Sequence[object],
        *,
        env: dict[str, str] | None = None,
        cwd: str | Path | None = None,
        stdout: int | IO[Any] = subprocess.DEVNULL,
        stderr: int | IO[Any] = subprocess.DEVNULL,
    ) -> None:
        executable, option, code, *arguments = map(str, command)
        assert (executable, option) == (sys.executable, "-c"), command
        sys.audit("forks.Process")
        self.args = command
        self.returncode: int | None = None
        request = {
            "code": code,
            "arguments": arguments,
            "env": dict(os.environ if env is None else env),
            "cwd": str(cwd or Path.cwd()),
        }
        with contextlib.ExitStack() as stack:
            ends = [os.open(os.devnull, os.O_RDONLY)]
            stack.callback(os.close, ends[0])
            readers: list[IO[str] | None] = []
            for target in (stdout, stderr):
                reader = None
                if target == subprocess.PIPE:
                    read, write = os.pipe()
                    # The process object owns it, as subprocess.Popen owns its pipes.
                    reader = open(read, encoding="utf-8")  # noqa: SIM115
                    stack.callback(os.close, write)
                elif target == subprocess.DEVNULL:
                    write = os.open(os.devnull, os.O_WRONLY)
                    stack.callback(os.close, write)
                else:
                    assert not isinstance(target, int)
                    write = target.fileno()
                readers.append(reader)
                ends.append(write)
            self.stdout, self.stderr = readers
            self._answer, write = os.pipe()
            stack.callback(os.close, write)
            message = json.dumps(request).encode()
            assert len(message) < LARGEST
            socket.send_fds(_server(), [message], [*ends, write])
        self.pid = self._read()

    def _read(self) -> int:
        line = b""
        while not line.endswith(b"\n"):
            byte = os.read(self._answer, 1)
            assert byte, "the process that forks others has ended"
            line += byte
        return int(line)

    def poll(self) -> int | None:
        if self.returncode is None and select.select([self._answer], [], [], 0)[0]:
            self.wait()
        return self.returncode

    def wait(self, timeout: float = LONG) -> int:
        if self.returncode is None:
            if not select.select([self._answer], [], [], timeout)[0]:
                raise subprocess.TimeoutExpired(list(map(str, self.args)), timeout)
            self.returncode = self._read()
            os.close(self._answer)
        return self.returncode

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def close(self) -> None:
        """Close the streams."""
        for stream in (self.stdout, self.stderr):
            if stream is not None:
                stream.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.kill()
        self.wait()
        self.close()


def run(
    command: Sequence[object], *, env: dict[str, str] | None = None, cwd: str | Path | None = None
) -> subprocess.CompletedProcess[str]:
    """Run a command to its end, as subprocess.run does with captured text; it must not wait for input."""
    import tempfile

    with tempfile.TemporaryFile("w+") as output, tempfile.TemporaryFile("w+") as errors:
        with Process(command, env=env, cwd=cwd, stdout=output, stderr=errors) as process:
            code = process.wait()
        output.seek(0)
        errors.seek(0)
        return subprocess.CompletedProcess(list(map(str, command)), code, output.read(), errors.read())


@functools.cache
def _server() -> socket.socket:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with theirs:
        server = subprocess.Popen(
            [sys.executable, "-c", PROGRAM, str(theirs.fileno())],
            env=ENVIRONMENT | ONE_THREAD,
            stdin=subprocess.DEVNULL,
            pass_fds=[theirs.fileno()],
        )

    def end() -> None:
        ours.close()
        server.wait(LONG)

    atexit.register(end)
    return ours
