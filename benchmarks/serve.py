"""The service under load, beside direct calls of the library on the same images in the same batches.

    python benchmarks/serve.py [--clients 64] [--images 5000] [--batch-size 64]

`cretta serve` runs in a process of its own with the shipped model; clients in threads of this one send one image at a
time, each the next as soon as it has its answer. Afterwards all answers are repeated by the library, batch by batch in
the order of their sequence numbers: every probability must be the same, bit for bit, and the time of these calls is
what the service is compared with: in seconds, and in seconds of the processor, which other programs on the machine
disturb less. Results go to benchmarks/results/serve.json, and as a table into docs/serving.md.
"""

from __future__ import annotations

import argparse
import http.client
import io
import json
import os
import platform
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image

import cretta
from cretta.data import embedded
from cretta.data.dataset import as_batch
from cretta.serve.shipped import shipped_adapter

ROOT = Path(__file__).parent.parent
RESULTS = ROOT / "benchmarks" / "results" / "serve.json"
PAGE = ROOT / "docs" / "serving.md"
TIMEOUT = 600.0


def corrupted(number: int) -> NDArray[np.uint8]:
    """Embedded test images in fog, repeated in another order as often as needed."""
    images = cretta.data.corrupt(embedded("test").images, "fog", severity=5, seed=0)
    generator = np.random.default_rng(0)
    order = np.concatenate([generator.permutation(len(images)) for _ in range(-(-number // len(images)))])
    return np.asarray(images[order[:number]])


def png(image: NDArray[np.uint8]) -> bytes:
    content = io.BytesIO()
    Image.fromarray(image).save(content, "PNG")
    return content.getvalue()


def send_all(port: int, bodies: list[bytes], clients: int) -> tuple[list[dict[str, Any]], list[float], float]:
    """Return the answers and latencies, by image, and the time of all."""
    answers: list[dict[str, Any]] = [{} for _ in bodies]
    latencies = [0.0] * len(bodies)
    numbers, errors = count(), []

    def client() -> None:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=TIMEOUT)
        try:
            while (number := next(numbers)) < len(bodies):
                begun = time.perf_counter()
                headers = {"Content-Type": "image/png"}
                connection.request("POST", "/predict?probabilities=true", bodies[number], headers)
                response = connection.getresponse()
                content = response.read()
                latencies[number] = time.perf_counter() - begun
                if response.status != 200:
                    raise RuntimeError(f"{response.status}: {content!r}")
                (answers[number],) = json.loads(content)["predictions"]
        except Exception as error:
            errors.append(error)
        finally:
            connection.close()

    threads = [threading.Thread(target=client) for _ in range(clients)]
    begun = time.perf_counter()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]
    return answers, latencies, time.perf_counter() - begun


def processor_seconds(process: int) -> float:
    """Return the time that a process, with all its threads, has used of the processor."""
    fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def replay(images: NDArray[np.uint8], answers: list[dict[str, Any]]) -> tuple[float, float, int, int]:
    """Repeat all batches by the library; return its seconds, twice, the number of batches and of different answers."""
    order = sorted(range(len(answers)), key=lambda index: answers[index]["sequence"])
    if [answers[index]["sequence"] for index in order] != list(range(len(answers))):
        raise RuntimeError("expected each sequence number once; an image was lost, or answered twice.")
    batches: dict[int, list[int]] = {}
    for index in order:
        batches.setdefault(answers[index]["batch"], []).append(index)
    model, _ = shipped_adapter()
    seconds, used, different = 0.0, 0.0, 0
    for batch in sorted(batches):
        members = batches[batch]
        expected: list[torch.Tensor] = []
        end = model.on_logits(expected.append)
        begun, used_before = time.perf_counter(), time.process_time()
        model(as_batch(images[members]))
        seconds += time.perf_counter() - begun
        used += time.process_time() - used_before
        end()
        rows = expected[0].softmax(-1).tolist()
        different += sum(answers[index]["probabilities"] != row for index, row in zip(members, rows, strict=True))
    return seconds, used, len(batches), different


def measure(clients: int, number: int, batch_size: int) -> dict[str, Any]:
    images = corrupted(number)
    bodies = [png(image) for image in images]
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "cretta", "serve", "--port", "0", "--folder", folder, "--rate", "0"]
        command += ["--batch-size", str(batch_size), "--timeout", str(TIMEOUT), "--log", "json"]
        with Path(folder, "log").open("w") as log:
            process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, text=True)
        try:
            assert process.stdout is not None
            port = int(re.findall(r":(\d+)/", process.stdout.readline())[0])
            before = processor_seconds(process.pid)
            answers, latencies, seconds = send_all(port, bodies, clients)
            used = processor_seconds(process.pid) - before
        finally:
            process.send_signal(signal.SIGTERM)
            process.wait(TIMEOUT)
    direct, direct_used, batches, different = replay(images, answers)
    return {
        "clients": clients,
        "images": number,
        "batch size": batch_size,
        "batches": batches,
        "images per batch": number / batches,
        "lost or answered twice": 0,
        "answers that differ from the library's": different,
        "latency p50 s": float(np.quantile(latencies, 0.5)),
        "latency p99 s": float(np.quantile(latencies, 0.99)),
        "service images/s": number / seconds,
        "library images/s": number / direct,
        "service / library, by time": direct / seconds,
        "service / library, by processor time": direct_used / used,
        "processes that were waiting to run, at the end": os.getloadavg()[0],
        "cretta": cretta.__version__,
        "torch": torch.__version__,
        "threads": torch.get_num_threads(),
        "machine": f"{platform.machine()}, {os.cpu_count()} cores",
    }


def table(results: dict[str, Any]) -> str:
    """Return the results as Markdown."""
    lines = ["| | |", "|---|---|"]
    for name, value in results.items():
        lines.append(f"| {name} | {value if not isinstance(value, float) else f'{value:.3g}'} |")
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--clients", type=int, default=64)
    parser.add_argument("--images", type=int, default=5000)
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--dry", action="store_true", help="print the results, write nothing")
    arguments = parser.parse_args()
    results = measure(arguments.clients, arguments.images, arguments.batch_size)
    print(json.dumps(results, indent=2))
    if not arguments.dry:
        RESULTS.parent.mkdir(exist_ok=True)
        RESULTS.write_text(json.dumps(results, indent=2) + "\n")
        mark = re.compile(r"(<!-- generated: load -->\n).*?(<!-- end -->)", re.DOTALL)
        PAGE.write_text(mark.sub(lambda match: f"{match[1]}\n{table(results)}\n\n{match[2]}", PAGE.read_text()))
    return int(
        results["answers that differ from the library's"] > 0 or results["service / library, by processor time"] < 0.85
    )


if __name__ == "__main__":
    sys.exit(main())
