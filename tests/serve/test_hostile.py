"""Hostile input: refused with a clear message, the service lives, the model is unchanged."""

from __future__ import annotations

import io
import json
import re
import struct
import zlib
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner
from PIL import Image

import textbook
from cretta.serve import v2
from cretta.serve.decode import ImageFormat
from cretta.serve.refusal import Refusal
from processes import LONG
from serving import BEARER, TOKEN, http, listening, make, npy, pixels, png, predict, run, running, service_of, until

BODIES = 1200


def chunk(kind: bytes, content: bytes) -> bytes:
    return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))


def png_of_size(width: int, height: int, content: bytes = b"") -> bytes:
    """A PNG whose header claims a size."""
    header = chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0))
    return b"\x89PNG\r\n\x1a\n" + header + chunk(b"IDAT", zlib.compress(content)) + chunk(b"IEND", b"")


def npy_header(text: str, content: bytes = b"", version: bytes = b"\x01\x00") -> bytes:
    header = text.encode("latin-1")
    return b"\x93NUMPY" + version + struct.pack("<H", len(header)) + header + content


def form(*parts: tuple[str, bytes]) -> tuple[str, bytes]:
    lines = [
        f'--limit\r\nContent-Disposition: form-data; name="{name}"; filename="f"\r\n\r\n'.encode() + content + b"\r\n"
        for name, content in parts
    ]
    return "multipart/form-data; boundary=limit", b"".join(lines) + b"--limit--\r\n"


def fixed() -> Iterator[tuple[str, bytes]]:
    """Bodies that are known to hurt decoders."""
    nan = np.full((8, 8, 3), np.nan, np.float32)
    objects = io.BytesIO()
    np.save(objects, np.array([{"a": 1}, print], dtype=object), allow_pickle=True)
    for content in (
        b"",
        b"\x93NUMPY",
        npy(nan),
        npy(nan * 0 + np.inf),
        npy(np.full((8, 8, 3), -0.1)),
        npy(np.full((8, 8, 3), 1e300)),
        npy(np.zeros((8, 8, 3), np.int64)),
        npy(np.zeros((8, 8, 3), np.complex64)),
        npy(np.zeros((8, 8, 3), "U4")),
        npy(np.zeros((8, 8, 3), [("x", "u1")])),
        npy(np.zeros((0, 8, 8, 3), np.uint8)),
        npy(np.zeros((), np.uint8)),
        npy(np.zeros((300, 8, 8, 3), np.uint8)),
        objects.getvalue(),
        npy_header("{'descr': '|u1', 'fortran_order': False, 'shape': (99999999999, 8, 8, 3), }"),
        npy_header("{'descr': '|u1', 'fortran_order': False, 'shape': (-1, 8, 8, 3), }"),
        npy_header("{'descr': '|u1', 'fortran_order': False, 'shape': (8, 8, 3), }", bytes(191)),
        npy_header("{'descr': '|u1', 'fortran_order': False, 'shape': (8, 8, 3), }", bytes(193)),
        npy_header("{'descr': '|O', 'fortran_order': False, 'shape': (8, 8, 3), }", bytes(8 * 192)),
        npy_header("__import__('os').system('true')"),
        npy_header("(" * 5000),
        npy_header("{'descr': '|u1', 'fortran_order': False, 'shape': (8, 8, 3), }", version=b"\x09\x00"),
        png_of_size(100_000, 100_000, bytes(1000)),
        png_of_size(2**31 - 1, 2**31 - 1),
        png_of_size(4000, 4000, bytes(10_000_000)),  # a bomb: 48 MB of zeros, cut off
        png_of_size(0, 8),
        png_of_size(1, 19_000_000),  # narrow: would be enlarged to a huge one
        b"GIF89a" + bytes(100),
        b"BM" + bytes(100),
        b"RIFF\x00\x00\x00\x00WEBPVP8 " + bytes(50),
        b"%PDF-1.4",
        b"<svg xmlns='http://www.w3.org/2000/svg'/>",
        b"\x80\x04\x95" + bytes(30),  # a pickle
        b"PK\x03\x04" + bytes(60),
    ):
        yield "image/png", content
        yield form(("images", content))
    good = png(pixels(1)[0])
    yield "text/plain", good
    yield "", good
    yield "application/json", b"{}"
    yield "multipart/form-data", good
    yield "multipart/form-data; boundary=x", b"--y\r\n\r\n"
    yield form()
    yield form(*[("images", good)] * 400)
    yield form(("images", good), ("images", b"not an image"))


def mutated(generator: np.random.Generator) -> Iterator[tuple[str, bytes]]:
    """Good files, damaged at random, so that they are not accepted by chance: always cut, or their header changed."""
    large = np.kron(pixels(1)[0], np.ones((5, 5, 1), np.uint8))
    sources = [png(pixels(1)[0]), png(large), png(large, "JPEG"), npy(pixels(2)), npy(generator.random((8, 8, 3)))]
    while True:
        content = bytearray(sources[generator.integers(len(sources))])
        way = generator.integers(4)
        if way == 0:
            content = content[: generator.integers(len(content) // 2)]
        elif way == 1:
            for index in generator.integers(0, 12, 3):
                content[index] ^= int(generator.integers(1, 256))
        elif way == 2:
            content = bytearray(generator.bytes(int(generator.integers(1, 400))))
        else:
            start = int(generator.integers(8, 60))
            content[start : start + 24] = generator.bytes(24)
        yield ("image/png", bytes(content)) if generator.integers(2) else form(("images", bytes(content)))


def test_fuzzed_bodies_are_refused_and_nothing_changes(tmp_path: Path) -> None:
    async def scenario() -> None:
        application = make(tmp_path)
        service = service_of(application)
        accepted: list[bytes] = []
        statuses: dict[int, int] = {}
        async with running(application) as client:
            await predict(client, pixels(1)[0])
            await client.post("/state/snapshot", headers=BEARER)
            before = service.adapter.state_dict()
            bodies = [*fixed()]
            extra = mutated(np.random.default_rng(0))
            bodies += [next(extra) for _ in range(BODIES - len(bodies))]
            for kind, content in bodies:
                sequence = service.queue.sequence
                response = await client.post("/predict", content=content, headers={"content-type": kind})
                statuses[response.status_code] = statuses.get(response.status_code, 0) + 1
                if response.status_code == 200:
                    # Damage that a decoder repairs or overlooks is an image, and the model learns from it.
                    accepted.append(content)
                    batch = response.json()["predictions"][-1]["batch"]
                    await until(lambda batch=batch: service.live.batches[-1][1]["batch"] == batch)  # type: ignore[misc]
                    before = service.adapter.state_dict()
                    continue
                assert 400 <= response.status_code < 500, (kind, content[:80], response.text)
                error = response.json()["error"]
                assert error.endswith((".", "again")), error
                assert "Traceback" not in error
                assert service.queue.sequence == sequence
                textbook.assert_bits(service.adapter.state_dict(), before)
            assert (await client.get("/v2/health/ready")).status_code == 200
            assert (await predict(client, pixels(1)[0])).status_code == 200
        assert sum(statuses.values()) == BODIES >= 1000
        assert statuses.keys() <= {200, 400, 413, 415, 422}
        assert {413, 415, 422} <= statuses.keys()
        assert len(accepted) < BODIES // 10, statuses

    run(scenario())


def test_all_images_of_a_request_have_a_limit_of_pixels() -> None:
    images = ImageFormat((8, 8), max_pixels=64)
    assert len(images.decode([png(image) for image in pixels(4)])) == 4
    with pytest.raises(Refusal, match="at most 256 pixels in all images") as refused:
        images.decode([png(image) for image in pixels(5)])
    assert refused.value.status == 413


def test_a_jpeg_of_very_many_scans_is_refused() -> None:
    content = io.BytesIO()
    Image.fromarray(pixels(1)[0]).save(content, "JPEG", progressive=True)
    encoded = content.getvalue()
    images = ImageFormat((8, 8))
    assert len(images.decode([encoded])) == 1
    start = encoded.rindex(b"\xff\xda")
    repeated = encoded[:-2] + encoded[start:-2] * 64 + encoded[-2:]
    with pytest.raises(Refusal, match="at most 64 scans") as refused:
        images.decode([repeated])
    assert refused.value.status == 422


def test_long_json_is_refused_before_it_is_parsed() -> None:
    images = ImageFormat((8, 8))
    with pytest.raises(Refusal, match="binary data") as refused:
        v2.parse(b"[" * (v2.MAX_JSON + 1), None, images)
    assert refused.value.status == 413
    with pytest.raises(Refusal, match="Inference-Header-Content-Length") as refused:
        v2.parse(b"{}", "9" * 5000, images)
    assert refused.value.status == 400


def test_pickles_are_never_loaded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import pickle

    import torch

    async def scenario() -> None:
        application = make(tmp_path)
        async with running(application) as client:

            def loaded(*arguments: object, **options: object) -> None:
                raise AssertionError("a pickle was loaded")

            for module, name in ((pickle, "load"), (pickle, "loads"), (pickle, "Unpickler"), (torch, "load")):
                monkeypatch.setattr(module, name, loaded)
            for kind, content in fixed():
                await client.post("/predict", content=content, headers={"content-type": kind})
            await client.post("/state/snapshot", headers=BEARER)
            assert (await client.post("/state/rollback", headers=BEARER)).status_code == 200

    run(scenario())


SCHEMATHESIS = """
[[operations]]
include-path = "/predict"

# What is a valid image, and that each part of a form needs a file name, is not in the document.
[operations.checks]
positive_data_acceptance.enabled = false
"""


@pytest.mark.slow
@pytest.mark.filterwarnings("default")  # its own
def test_schemathesis_agrees_with_the_openapi_document(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All its checks and phases: values at limits, random ones, and sequences of requests."""
    program = pytest.importorskip("schemathesis.cli").schemathesis
    (tmp_path / "schemathesis.toml").write_text(SCHEMATHESIS)
    monkeypatch.chdir(tmp_path)
    with listening(make(tmp_path / "state")) as address:
        document = http().get(f"{address}/openapi.json").json()
        assert {"/predict", "/v2/models/{name}/infer", "/state/rollback"} <= document["paths"].keys()
        (tmp_path / "openapi.json").write_text(json.dumps(document))
        options = ["--max-examples", "25", "--generation-deterministic", "--suppress-health-check", "all"]
        options += ["--continue-on-failure", "--no-color", "--request-timeout", str(LONG)]
        authorization = f"Authorization: Bearer {TOKEN}"
        done = CliRunner().invoke(program, ["run", "openapi.json", "--url", address, "-H", authorization, *options])
        assert done.exit_code == 0, done.output
        generated = re.search(r"(\d+) generated", done.output)
        assert generated is not None
        assert int(generated[1]) > 300
        assert http().get(f"{address}/v2/health/ready").status_code == 200
