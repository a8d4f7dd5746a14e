"""Rates, slow uploads and slow headers."""

from __future__ import annotations

import asyncio
import socket
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import httpx
import pytest

from cretta.serve.limits import CLIENTS, RateLimit, Upload, Uploads
from cretta.serve.refusal import Refusal
from cretta.serve.settings import Settings
from processes import LONG
from serving import listening, make, pixels, png, predict, run, running


def test_the_rate_is_limited_per_client() -> None:
    now = 0.0
    limit = RateLimit(2.0, clock=lambda: now)

    def allowed(client: str = "a") -> bool:
        try:
            limit.check(client)
        except Refusal as refusal:
            return refusal.status != 429
        return True

    assert [allowed() for _ in range(4)] == [True, True, False, False]
    assert allowed("b")
    now = 0.5
    assert [allowed() for _ in range(2)] == [True, False]
    now = 100.0
    assert [allowed() for _ in range(3)] == [True, True, False]
    for number in range(2 * CLIENTS):
        allowed(str(number))
    assert len(limit._buckets) == CLIENTS


def test_a_slow_upload_is_ended() -> None:
    async def scenario() -> None:
        settings = Settings(upload_seconds=0.01)

        async def receive() -> dict[str, Any]:
            await asyncio.Event().wait()
            raise AssertionError

        upload = Upload(Uploads(settings), settings, receive)
        with pytest.raises(Refusal, match=r"expected the body within 0.01 seconds") as refused:
            await upload.receive()
        assert refused.value.status == 408

    run(scenario())


def test_bytes_of_all_uploads_are_bounded() -> None:
    async def scenario() -> None:
        settings = Settings(max_pending=10)
        uploads = Uploads(settings)

        async def receive() -> dict[str, Any]:
            return {"type": "http.request", "body": b"123456", "more_body": True}

        first, second = (Upload(uploads, settings, receive) for _ in range(2))
        await first.receive()
        with pytest.raises(Refusal, match="too many uploads at once"):
            await second.receive()
        second.close()
        first.close()
        assert uploads.pending == 0

    run(scenario())


def test_bytes_of_refused_uploads_count_no_longer(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running(make(tmp_path, max_pending=1000)) as client:
            for _ in range(3):
                refused = await client.post("/state/reset", content=600 * b"x")  # without a token
                assert refused.status_code == 401
            assert (await predict(client, pixels(1)[0])).status_code == 200

    run(scenario())


@pytest.mark.parametrize("sent", [b"", b"POST /predict HTTP/1.1\r\nHost: localhost\r\nX-Slow: "])
def test_headers_that_never_end_close_the_connection(tmp_path: Path, sent: bytes) -> None:
    with listening(make(tmp_path, header_seconds=0.05)) as address, socket.socket() as client:
        client.settimeout(LONG)
        client.connect(("127.0.0.1", httpx.URL(address).port or 0))
        client.sendall(sent)
        assert client.recv(1) == b""


def test_a_flood_of_headers_is_refused(tmp_path: Path) -> None:
    with listening(make(tmp_path)) as address, socket.socket() as client:
        client.settimeout(LONG)
        client.connect(("127.0.0.1", httpx.URL(address).port or 0))
        client.sendall(b"GET / HTTP/1.1\r\nHost: localhost\r\n" + b"X-Header: 0123456789\r\n" * 3000)
        answer = b""
        try:
            while part := client.recv(4096):
                answer += part
        except ConnectionResetError:  # it does not read the rest
            pass
        assert answer == b"" or answer.startswith(b"HTTP/1.1 4")


def test_an_open_page_does_not_hold_up_the_end(tmp_path: Path) -> None:
    with (
        ExitStack() as stack,
        httpx.Client(
            base_url=stack.enter_context(listening(make(tmp_path, pages=1, drain=10 * LONG))), timeout=LONG
        ) as client,
        client.stream("GET", "/events") as events,
    ):
        lines = events.iter_lines()
        assert next(lines).startswith("data: ")
        assert client.get("/events").status_code == 503
        kind = {"content-type": "image/png"}
        assert client.post("/predict", content=png(pixels(1)[0]), headers=kind).status_code == 200
        assert any('"outcome": "adapted"' in line for line in lines)
        stack.close()  # ends the service, while the page is open
        assert not any(line.startswith("data: ") for line in lines)
