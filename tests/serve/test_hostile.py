"""Hostile input: refused with a clear message, the service lives, the model is unchanged."""

from __future__ import annotations

import io
import struct
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import textbook
from serving import BEARER, listening, make, npy, pixels, png, predict, run, running, service_of

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
                # Damage that a decoder repairs or overlooks is an image: the model must not learn from it here.
                response = await client.post("/predict?adapt=false", content=content, headers={"content-type": kind})
                statuses[response.status_code] = statuses.get(response.status_code, 0) + 1
                if response.status_code == 200:
                    accepted.append(content)
                    continue
                assert 400 <= response.status_code < 500, (kind, content[:80], response.text)
                error = response.json()["error"]
                assert error.endswith((".", "again")), error
                assert "Traceback" not in error
            assert (await client.get("/v2/health/ready")).status_code == 200
            textbook.assert_bits(service.adapter.state_dict(), before)
            assert (await predict(client, pixels(1)[0])).status_code == 200
        assert sum(statuses.values()) == BODIES >= 1000
        assert statuses.keys() <= {200, 400, 413, 415, 422}
        assert {413, 415, 422} <= statuses.keys()
        assert len(accepted) < BODIES // 10, statuses

    run(scenario())


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


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # of the generators of schemathesis
def test_schemathesis_agrees_with_the_openapi_document(tmp_path: Path) -> None:
    schemathesis = pytest.importorskip("schemathesis", reason="schemathesis is not installed")
    import httpx
    from hypothesis import HealthCheck, Phase, given, settings
    from hypothesis import strategies as st

    image = st.integers(0, 1000).map(lambda seed: png(pixels(1, seed)[0]))
    for kind in ("image/png", "image/jpeg"):
        schemathesis.openapi.media_type(kind, image)
    schemathesis.openapi.media_type("application/x-npy", st.integers(1, 3).map(lambda count: npy(pixels(count))))
    calls = 0
    with listening(make(tmp_path)) as address:
        document = httpx.get(f"{address}/openapi.json").json()
        assert "/predict" in document["paths"]
        assert "/v2/models/{name}/infer" in document["paths"]
        schema = schemathesis.openapi.from_dict(document)
        for result in schema.get_all_operations():
            operation = result.ok()

            @settings(
                max_examples=40,
                deadline=None,
                derandomize=True,
                database=None,
                phases=[Phase.generate],
                suppress_health_check=list(HealthCheck),
            )
            @given(case=operation.as_strategy())
            def conforms(case: Any) -> None:
                nonlocal calls
                calls += 1
                headers = dict(BEARER) if case.path.startswith("/state") else {}
                # Checks of authorization and of accepted bodies do not know what a valid token or image is.
                checks = [
                    schemathesis.checks.not_a_server_error,
                    schemathesis.checks.CHECKS.get_one("status_code_conformance"),
                    schemathesis.checks.CHECKS.get_one("content_type_conformance"),
                    schemathesis.checks.CHECKS.get_one("response_schema_conformance"),
                ]
                case.call_and_validate(base_url=address, headers=headers, checks=checks)

            conforms()
        assert httpx.get(f"{address}/v2/health/ready").status_code == 200
    assert calls > 150
