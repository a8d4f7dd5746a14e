"""`cretta serve` as a process: signals under load, restarts, and the shipped model without arguments."""

from __future__ import annotations

import contextlib
import functools
import json
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Self

import httpx
import pytest

import cretta
import forks
from processes import ENVIRONMENT, LONG, command
from serving import BEARER, TOKEN, http, pixels, png

pytestmark = [pytest.mark.process, pytest.mark.slow]
CLIENTS = 8
LEARN = ("--statistics", "running", "--guard", "off")
"""One image again and again is nothing that the defaults learn from."""


class Process:
    """A service in a new process; its log is read as it is written."""

    def __init__(self, *arguments: object, start: Any = forks.Process, before: str = "", **changes: str) -> None:
        self.log: list[dict[str, Any]] = []
        self._changed = threading.Condition()
        line = command("serve", "--port", 0, "--log", "json", "--timeout", LONG, "--drain", LONG, *arguments)
        line[2] = f"{before}\n{line[2]}"
        self.process = start(
            line,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env={**ENVIRONMENT, "CRETTA_TOKEN": TOKEN, "PYTHONUNBUFFERED": "1", **changes},
        )
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def __enter__(self) -> Self:
        try:
            line = self.process.stdout.readline()
            assert " at http://127.0.0.1:" in line, [line, self.log]
        except BaseException:
            self.__exit__()
            raise
        self.address = line.split(" at ")[1].split()[0]
        return self

    def __exit__(self, *_: object) -> None:
        """End the process if the test has not: a test that fails leaves nothing behind."""
        self.process.kill()
        self.process.wait()
        self._reader.join(LONG)
        self.process.stdout.close()
        self.process.stderr.close()

    def _read(self) -> None:
        for line in self.process.stderr:
            with self._changed:
                self.log.append(json.loads(line))
                self._changed.notify_all()

    def events(self, name: str) -> list[dict[str, Any]]:
        return [entry for entry in self.log if entry["event"] == name]

    def first(self, name: str) -> dict[str, Any]:
        """Wait for an event: the log may be read later than what the process does."""
        with self._changed:
            assert self._changed.wait_for(lambda: self.events(name), LONG)
        return self.events(name)[0]

    def end(self, how: int) -> int:
        self.process.send_signal(how)
        status: int = self.process.wait(LONG)
        self._reader.join(LONG)
        return status


@contextlib.contextmanager
def load(address: str, enough: int) -> Iterator[list[dict[str, Any]]]:
    """Send images from several clients until the service is gone; yield the answers after ``enough`` of them."""
    answers: list[dict[str, Any]] = []
    reached = threading.Event()
    body = png(pixels(1)[0])

    def send() -> None:
        headers = {"content-type": "image/png"}
        for _ in range(100_000):
            try:
                response = http().post(f"{address}predict", content=body, headers=headers)
            except httpx.TransportError:  # not accepted, or killed
                return
            if response.status_code == 503:
                return
            assert response.status_code == 200, response.text
            answers.extend(response.json()["predictions"])
            if len(answers) >= enough:
                reached.set()

    threads = [threading.Thread(target=send) for _ in range(CLIENTS)]
    for thread in threads:
        thread.start()
    assert reached.wait(LONG)
    yield answers
    for thread in threads:
        thread.join(LONG)
        assert not thread.is_alive()


def options(folder: Path) -> tuple[object, ...]:
    buffer = folder / "source.safetensors"
    if not buffer.exists():
        cretta.SourceBuffer(pixels(20, seed=9), augment="none").save(buffer)
    return ("--model", "textbook:small_net", "--buffer", buffer, "--folder", folder / "state", "--rate", 0, *LEARN)


def test_sigterm_under_load_answers_every_accepted_request(tmp_path: Path) -> None:
    with Process(*options(tmp_path), "--snapshot-every", 0) as service, load(service.address, 50) as answers:
        assert service.end(signal.SIGTERM) == 0
    (stopped,) = service.events("stopped")
    assert stopped["clean"] is True
    assert stopped["accepted"] == len(answers) >= 50
    assert sorted(answer["sequence"] for answer in answers) == list(range(len(answers)))
    (snapshot,) = (tmp_path / "state").glob("snapshot-*.safetensors")
    assert snapshot.name.endswith(f"-step-{stopped['step']}.safetensors")


def test_sigkill_under_load_and_restart(tmp_path: Path) -> None:
    with Process(*options(tmp_path), "--snapshot-every", 1) as service, load(service.address, 50):
        while not any((tmp_path / "state").glob("snapshot-*-step-[1-9]*.safetensors")):
            assert service.process.poll() is None
            time.sleep(0.01)
        assert service.end(signal.SIGKILL) == -signal.SIGKILL
    with Process(*options(tmp_path), "--snapshot-every", 1) as again:
        ready = again.first("ready")
        assert ready["step"] > 0
        assert ready["snapshot"].endswith(f"-step-{ready['step']}.safetensors")
        headers = {"content-type": "image/png"}
        answer = (
            http().post(f"{again.address}predict", content=png(pixels(1)[0]), headers=headers).json()["predictions"][0]
        )
        assert answer["step"] == ready["step"]
        state = http().get(f"{again.address}state", headers=BEARER).json()
        assert state["step"] >= ready["step"]
        assert again.end(signal.SIGINT) == 0


BUSY = """
from pathlib import Path
import textbook, torch
def compute(*_):
    if Path("ask").exists():
        Path("begun").touch()
        x = torch.zeros(500, 500)
        while True:
            x @ x
def network():
    net = textbook.small_net()
    net.register_forward_pre_hook(compute)
    return net
"""


def test_a_batch_that_does_not_end_in_time_is_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The process ends with code 1: it is not aborted because PyTorch computes while the interpreter ends."""
    (tmp_path / "busy.py").write_text(BUSY)
    model = ("--model", "busy:network", *options(tmp_path)[2:], "--drain", 0.01)
    monkeypatch.chdir(tmp_path)
    with Process(*model, before="import cretta.serve.service as s; s.SNAPSHOT_SECONDS = 0.01") as service:
        (tmp_path / "ask").touch()
        address, body = httpx.URL(service.address), png(pixels(1)[0])
        lines = [f"Host: {address.netloc.decode()}", "Content-Type: image/png", f"Content-Length: {len(body)}"]
        with socket.create_connection((address.host, address.port)) as client:
            client.sendall("\r\n".join(["POST /predict HTTP/1.1", *lines, "", ""]).encode() + body)
            while not (tmp_path / "begun").exists():
                assert service.process.poll() is None, service.log
                time.sleep(0.01)
        assert service.end(signal.SIGTERM) == 1
    assert service.first("stopped")["clean"] is False


def test_the_shipped_model_without_arguments(tmp_path: Path) -> None:
    from cretta.data import embedded

    test = embedded("test")
    files = [("images", (f"{index}.png", png(test[index][0]))) for index in range(16)]
    start = functools.partial(subprocess.Popen, text=True)
    with Process("--folder", tmp_path, start=start, OMP_NUM_THREADS="1") as service:
        body = http().post(f"{service.address}predict", files=files).json()
        labels = [test.classes[test[index][1]] for index in range(16)]
        hits = sum(entry["label"] == label for entry, label in zip(body["predictions"], labels, strict=True))
        assert hits >= 13  # the model has 86 % on clean images
        assert service.end(signal.SIGTERM) == 0
