"""The service under load, beside direct calls of the library on the same images in the same batches.

    python benchmarks/serve.py [--clients 64] [--images 5000] [--batch-size 64]
    python benchmarks/serve.py --part poison [--batches 50] [--batch-size 64]

`cretta serve` runs in a process of its own with the shipped model. Clients, all in one thread of this process, send one
image at a time, each the next as soon as it has its answer; their requests are prepared before, and answers are read
afterwards, since they use the same cores. Then the library repeats all answers, batch by batch in the order of their
sequence numbers, with the kernels that the service chose: every probability must be the same, bit for bit.

Times do not include the first batches, in which kernels are timed and verified: the service is timed from the answers
of batch WARM to the last answers, the library on the batches after WARM. Takes about five minutes on two cores without
other work. Results go to benchmarks/results/<processor>/serve.json, and from there into docs/serving.md; --dry only
prints them. The exit status is 1 if an answer differs or the service has less than 85 % of the library's throughput.

With --part poison, one client sends full batches of images that would make a model worse: constant ones, noise, or one
class; to a service as it is by default, with statistics that fit the batch, and to one with the batch's own. Accuracy
on clean images is measured before and after, with adapt=false. The exit status is 1 if it falls by more than a point,
or if the guard of the default service did nothing. Takes about ten minutes.
"""

from __future__ import annotations

import argparse
import asyncio
import io
import itertools
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from functools import partial
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image

import cretta
import results
from cretta.data import embedded
from cretta.data.dataset import as_batch
from cretta.serve.shipped import shipped_adapter

PAGE = Path(__file__).parent.parent / "docs" / "serving.md"
TIMEOUT = 600.0
WARM = 2
"""The number of the first batch that the times begin after."""
LEAST = 0.85
"""Throughput of the service, as a part of the library's."""
CLEAN = 500
KINDS = ("constant", "noise", "one class")
"""Of poison."""
STATISTICS = ("auto", "batch")


def corrupted(number: int) -> NDArray[np.uint8]:
    """Embedded test images in fog, repeated in another order as often as needed."""
    images = cretta.data.corrupt(embedded("test").images, "fog", severity=5, seed=0)
    generator = np.random.default_rng(0)
    order = np.concatenate([generator.permutation(len(images)) for _ in range(-(-number // len(images)))])
    return np.asarray(images[order[:number]])


def http_request(image: NDArray[np.uint8]) -> bytes:
    content = io.BytesIO()
    Image.fromarray(image).save(content, "PNG")
    body = content.getvalue()
    head = (
        "POST /predict?probabilities=true HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: image/png\r\n"
        f"Content-Length: {len(body)}\r\n\r\n"
    )
    return head.encode() + body


def progress(what: str, number: int) -> Callable[[int], None]:
    """Return a function that prints a line for each tenth of ``number`` images."""
    begun = time.perf_counter()
    shown = 0

    def done(count: int) -> None:
        nonlocal shown
        if count * 10 // number > shown:
            shown = count * 10 // number
            rate = count / (time.perf_counter() - begun)
            print(f"{what}: {count} of {number} images, {rate:.1f} per second", file=sys.stderr, flush=True)

    return done


class Load:
    """What all clients share: requests, and what was answered when."""

    def __init__(self, requests: Sequence[bytes]) -> None:
        self.requests = requests
        self.numbers = iter(range(len(requests)))
        self.began = [0.0] * len(requests)
        self.ended = [0.0] * len(requests)
        self.bodies: list[bytes] = [b""] * len(requests)
        self.answered = 0
        self.finished: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._progress = progress("service", len(requests))

    def add(self, number: int, body: bytes) -> None:
        """Record an answer."""
        self.ended[number] = time.perf_counter()
        if self.bodies[number]:
            self.fail(f"image {number} was answered twice.")
        self.bodies[number] = body
        self.answered += 1
        self._progress(self.answered)
        if self.answered == len(self.requests) and not self.finished.done():
            self.finished.set_result(None)

    def fail(self, message: str) -> None:
        """End the load with an error."""
        if not self.finished.done():
            self.finished.set_exception(RuntimeError(message))

    def answers(self) -> list[dict[str, Any]]:
        """Return the prediction of each image."""
        return [json.loads(body)["predictions"][0] for body in self.bodies]


class Client(asyncio.Protocol):
    """One connection that sends a request, reads its answer, and sends the next."""

    def __init__(self, load: Load) -> None:
        self._load = load
        self._number = -1
        self._received = b""
        self._expected: int | None = None
        """Bytes of the body, once the head of the answer is complete; then it is removed from what was received."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Send the first request."""
        self._transport: Any = transport
        self._send()

    def data_received(self, data: bytes) -> None:
        """Read an answer; when it is complete, send the next request."""
        self._received += data
        if self._expected is None:
            head, separator, _ = self._received.partition(b"\r\n\r\n")
            if not separator:
                return
            length = re.search(rb"\r\ncontent-length: (\d+)", head, re.IGNORECASE)
            if not head.startswith(b"HTTP/1.1 200 ") or length is None:
                self._load.fail(f"expected the status 200, got {self._received!r}.")
                return
            self._received = self._received[len(head) + len(separator) :]
            self._expected = int(length[1])
        if len(self._received) >= self._expected:
            body, self._received, self._expected = self._received, b"", None
            self._load.add(self._number, body)
            self._send()

    def connection_lost(self, error: Exception | None) -> None:
        """Report a connection that is closed too early."""
        if not self._load.finished.done():
            self._load.fail(f"a connection was closed before its answer: {error}.")

    def _send(self) -> None:
        number = next(self._load.numbers, None)
        if number is not None:  # else wait for the others: closing now would look like a lost answer
            self._number = number
            self._load.began[number] = time.perf_counter()
            self._transport.write(self._load.requests[number])


async def send_all(port: int, requests: Sequence[bytes], clients: int) -> Load:
    """Send all requests by so many clients; return what was answered."""
    load = Load(requests)
    loop = asyncio.get_running_loop()
    connections = [await loop.create_connection(lambda: Client(load), "127.0.0.1", port) for _ in range(clients)]
    await load.finished
    for transport, _ in connections:
        transport.close()
    return load


def processor_seconds(process: int) -> float:
    """Return the time that a process, with all its threads, has used of the processor."""
    fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def in_batches(answers: Sequence[dict[str, Any]]) -> dict[int, list[int]]:
    """Return the images of each batch, in the order of their sequence numbers, each of which must be there once."""
    order = sorted(range(len(answers)), key=lambda index: answers[index]["sequence"])
    if [answers[index]["sequence"] for index in order] != list(range(len(answers))):
        raise RuntimeError("expected each sequence number once; an image was lost, or answered twice.")
    batches: dict[int, list[int]] = {}
    for index in order:
        batches.setdefault(answers[index]["batch"], []).append(index)
    return dict(sorted(batches.items()))


def replay(
    images: NDArray[np.uint8], answers: Sequence[dict[str, Any]], snapshot: Path
) -> Iterator[tuple[float, float, int]]:
    """Repeat all batches by the library; yield seconds, seconds of the processor and different answers of each."""
    shipped_adapter()[0].restore(snapshot)  # pins the kernels that the service chose: others round differently
    model, _ = shipped_adapter()
    done, count = progress("library", len(answers)), 0
    for members in in_batches(answers).values():
        expected: list[torch.Tensor] = []
        end = model.on_logits(expected.append)
        begun, used_before = time.perf_counter(), time.process_time()
        model(as_batch(images[members]))
        seconds, used = time.perf_counter() - begun, time.process_time() - used_before
        end()
        rows = expected[0].softmax(-1).tolist()
        count += len(members)
        done(count)
        different = sum(answers[index]["probabilities"] != row for index, row in zip(members, rows, strict=True))
        yield seconds, used, different


@contextmanager
def serving(folder: Path, *options: str) -> Iterator[tuple[int, int]]:
    """Run the service with the shipped model; yield its port and its process; at the end, it saves a snapshot."""
    command = [sys.executable, "-m", "cretta", "serve", "--port", "0", "--folder", str(folder), "--rate", "0"]
    command += ["--timeout", str(TIMEOUT), "--log", "json", *options]
    log = folder / "log"
    with log.open("w") as stream:
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=stream, text=True)
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        if not line:
            raise RuntimeError(f"the service did not start: {log.read_text()}")
        yield int(re.findall(r":(\d+)/", line)[0]), process.pid
    finally:
        process.send_signal(signal.SIGTERM)
        status = process.wait(TIMEOUT)
    if status:
        raise RuntimeError(f"the service ended with status {status}: {log.read_text()}")


def measure_load(clients: int, number: int, batch_size: int) -> dict[str, Any]:
    """Return what many clients get, beside the library."""
    images = corrupted(number)
    requests = [http_request(image) for image in images]
    waiting = os.getloadavg()[0]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        with serving(folder, "--batch-size", str(batch_size)) as (port, process):
            used_before = processor_seconds(process)
            load = asyncio.run(send_all(port, requests, clients))
            used = processor_seconds(process) - used_before
        answers = load.answers()
        direct = list(replay(images, answers, max(folder.glob("snapshot-*.safetensors"))))
    batches = list(in_batches(answers).values())
    if len(batches) < WARM + 2:
        raise RuntimeError(f"expected at least {WARM + 2} batches, got {len(batches)}; send more images.")
    timed = [index for members in batches[WARM + 1 :] for index in members]
    latencies = [load.ended[index] - load.began[index] for index in timed]
    seconds = max(load.ended) - max(load.ended[index] for index in batches[WARM])
    direct_seconds = sum(seconds for seconds, _, _ in direct[WARM + 1 :])
    return {
        "machine": {**results.machine(), "processes that were waiting to run before": waiting},
        "clients": clients,
        "images": number,
        "batch size": batch_size,
        "batches": len(batches),
        "images per timed batch": len(timed) / len(batches[WARM + 1 :]),
        "lost or answered twice": 0,  # or in_batches had raised
        "answers that differ from the library's": sum(different for _, _, different in direct),
        "seconds until the first answer": min(load.ended) - min(load.began),
        "latency p50 s": float(np.quantile(latencies, 0.5)),
        "latency p99 s": float(np.quantile(latencies, 0.99)),
        "service images/s": len(timed) / seconds,
        "library images/s": len(timed) / direct_seconds,
        "service / library": direct_seconds / seconds,
        "service / library, by processor time of all batches": sum(used for _, used, _ in direct) / used,
    }


def poison(kind: str, count: int) -> NDArray[np.uint8]:
    """Return images that would make a model worse."""
    if kind == "constant":
        return np.full((count, 32, 32, 3), 128, np.uint8)
    if kind == "noise":
        return np.random.default_rng(0).integers(0, 256, (count, 32, 32, 3), dtype=np.uint8)
    test = embedded("test")
    cats = test.images[CLEAN:][test.labels[CLEAN:] == test.classes.index("cat")]
    return np.asarray(cats[np.arange(count) % len(cats)])


def predicted(connection: HTTPConnection, images: NDArray[np.uint8], adapt: str) -> list[int]:
    """Return the classes of images that are sent in one request."""
    content = io.BytesIO()
    np.save(content, images)
    connection.request("POST", f"/predict?adapt={adapt}", content.getvalue(), {"Content-Type": "application/x-npy"})
    response = connection.getresponse()
    body = response.read()
    if response.status != 200:
        raise RuntimeError(f"expected the status 200, got {response.status}: {body!r}")
    return [entry["class"] for entry in json.loads(body)["predictions"]]


def accuracy(connection: HTTPConnection) -> float:
    """Return the accuracy on clean images, in percent, of which the model learns nothing."""
    test = embedded("test")
    parts = [predicted(connection, test.images[first : first + 250], "false") for first in range(0, CLEAN, 250)]
    return 100 * float(np.mean(np.concatenate(parts) == test.labels[:CLEAN]))


def counted(connection: HTTPConnection, metric: str) -> dict[str, int]:
    """Return the values of a counter, by its label."""
    connection.request("GET", "/metrics")
    text = connection.getresponse().read().decode()
    return {label: int(float(value)) for label, value in re.findall(rf'{metric}{{\w+="(\w+)"}} (\S+)', text)}


def measure_poison(batches: int, batch_size: int) -> dict[str, Any]:
    """Return the accuracy on clean images before and after each kind of poison, and what the service did."""
    rows: list[dict[str, Any]] = []
    for statistics, kind in itertools.product(STATISTICS, KINDS):
        with (
            tempfile.TemporaryDirectory() as name,
            serving(Path(name), "--batch-size", str(batch_size), "--statistics", statistics) as (port, _),
            closing(HTTPConnection("127.0.0.1", port, timeout=TIMEOUT)) as connection,
        ):
            before = accuracy(connection)
            images = poison(kind, batches * batch_size)
            done = progress(f"{statistics} statistics, {kind}", len(images))
            for first in range(0, len(images), batch_size):
                predicted(connection, images[first : first + batch_size], "true")
                done(first + batch_size)
            after = accuracy(connection)  # in the writer's thread, so that the last update is done
            outcomes = counted(connection, "cretta_steps_total")
            guard = counted(connection, "cretta_guard_events_total")
        rows.append(
            {
                "statistics": statistics,
                "images": kind,
                "before": before,
                "after": after,
                "adapted": outcomes.get("adapted", 0),
                "guard": guard,
            }
        )
    sizes = {"batches": batches, "batch size": batch_size, "clean images": CLEAN}
    return {"machine": results.machine(), **sizes, "rows": rows}


def survived(row: dict[str, Any]) -> bool:
    """Return whether a model is as good as before; and, by default, the guard reported the images."""
    return bool(row["after"] >= row["before"] - 1) and bool(row["guard"] or row["statistics"] != "auto")


def poison_table(measured: dict[str, Any]) -> str:
    """Return what was measured on one machine as Markdown."""
    lines = [
        f"{measured['batches']} batches of {measured['batch size']} images; accuracy in percent on "
        f"{measured['clean images']} clean images.",
        "",
        "| `--statistics` | images | before | after | batches learned from | the guard |",
        "|---|---|---|---|---|---|",
    ]
    for row in measured["rows"]:
        guard = ", ".join(f"{action} {count} ×" for action, count in row["guard"].items()) or "–"
        accuracies = [f"{row['before']:.1f}", f"{row['after']:.1f}"]
        cells = [f"`{row['statistics']}`", row["images"], *accuracies, row["adapted"], guard]
        lines.append(f"| {' | '.join(map(str, cells))} |")
    return "\n".join(lines)


def load_table(measured: dict[str, Any]) -> str:
    """Return what was measured on one machine as Markdown."""
    machine = measured["machine"]
    facts = f"{machine['threads']} threads, torch {machine['torch']}, kernels: {machine['kernels']}, {machine['date']}."
    lines = [f"**{machine['processor']}, {machine['cores']} cores**", "", facts, "", "| | |", "|---|---|"]
    for name, value in measured.items():
        if name != "machine":
            lines.append(f"| {name} | {value if not isinstance(value, float) else f'{value:.3g}'} |")
    return "\n".join(lines)


PARTS: dict[str, tuple[str, Callable[[dict[str, Any]], str]]] = {
    "load": ("serve.json", load_table),
    "poison": ("serve-poison.json", poison_table),
}
"""The parts of the page: the file of each, and how it is shown."""


def written(page: str, folder: Path = results.FOLDER) -> str:
    """Return the page with the tables of all machines."""
    for part, (file, table) in PARTS.items():
        saved = [json.loads(path.read_text()) for path in sorted(folder.glob(f"*/{file}"))]
        tables = "\n\n".join(map(table, saved)) or "Not measured yet: it needs a machine without other work."
        mark = re.compile(rf"(<!-- generated: {part} -->\n).*?(<!-- end -->)", re.DOTALL)
        page, count = mark.subn(partial(_filled, tables), page)
        if count != 1:
            raise ValueError(f"expected the comment <!-- generated: {part} --> once, got it {count} times.")
    return page


def _filled(tables: str, match: re.Match[str]) -> str:
    return f"{match[1]}\n{tables}\n\n{match[2]}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--part", choices=list(PARTS), default="load")
    parser.add_argument("--clients", type=int, default=64)
    parser.add_argument("--images", type=int, default=5000)
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--batches", type=int, default=50, help="of poison")
    parser.add_argument("--dry", action="store_true", help="print the results, write nothing")
    arguments = parser.parse_args()
    if arguments.part == "load":
        measured = measure_load(arguments.clients, arguments.images, arguments.batch_size)
        good = not measured["answers that differ from the library's"] and measured["service / library"] >= LEAST
    else:
        measured = measure_poison(arguments.batches, arguments.batch_size)
        good = all(map(survived, measured["rows"]))
    print(json.dumps(measured, indent=2))
    if not arguments.dry:
        print(f"saved: {results.save(PARTS[arguments.part][0], measured)}", file=sys.stderr)
        PAGE.write_text(written(PAGE.read_text()))
    return int(not good)


if __name__ == "__main__":
    sys.exit(main())
