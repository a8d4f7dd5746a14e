"""Who may call what, and what every response has."""

from __future__ import annotations

import socket
from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import pytest

from cretta.serve import limits
from cretta.serve.access import Access, is_loopback
from cretta.serve.refusal import Refusal
from processes import LONG
from serving import BEARER, TOKEN, listening, make, pixels, png, predict, run, running, service_of

ELSEWHERE = {"path": "/predict", "server": ("192.0.2.1", 8000)}
LOCAL = {"path": "/predict", "server": ("127.0.0.1", 8000)}


def test_addresses_of_this_machine() -> None:
    assert all(map(is_loopback, ("127.0.0.1", "::1", "localhost", "/run/socket", "127.8.9.1")))
    assert not any(map(is_loopback, ("0.0.0.0", "::", "192.0.2.1", "localhost.example", "")))


def test_elsewhere_everything_except_health_and_the_empty_page_needs_the_token() -> None:
    access = Access(TOKEN)
    headers = {"host": "model.example"}
    for path in ("/predict", "/metrics", "/events", "/state", "/v2", "/openapi.json", "/state/reset"):
        with pytest.raises(Refusal, match="Authorization: Bearer") as refused:
            access.check({**ELSEWHERE, "path": path}, headers)
        assert refused.value.status == 401
        access.check({**ELSEWHERE, "path": path}, {**headers, "authorization": f"Bearer {TOKEN}"})
    for path in ("/", "/v2/health/live", "/v2/health/ready"):
        access.check({**ELSEWHERE, "path": path}, headers)


@pytest.mark.parametrize(
    "value", ["", "Bearer", "Bearer ", f"Basic {TOKEN}", f"Bearer {TOKEN}x", f"Bearer {TOKEN[:-1]}"]
)
def test_a_wrong_token_is_refused(value: str) -> None:
    with pytest.raises(Refusal):
        Access(TOKEN).check(ELSEWHERE, {"host": "a", "authorization": value})


def test_bound_elsewhere_a_local_connection_needs_the_token_too() -> None:
    with pytest.raises(Refusal, match="Authorization"):
        Access(TOKEN, local=False).check(LOCAL, {"host": "localhost"})


def test_pages_of_other_sites_cannot_send_requests() -> None:
    access = Access(TOKEN)
    access.check(LOCAL, {"host": "localhost:8000", "origin": "http://localhost:8000"})
    for headers in (
        {"host": "localhost:8000", "origin": "http://evil.example"},
        {"host": "localhost:8000", "origin": "null"},
        {"host": "evil.example:8000"},  # a name that resolves to 127.0.0.1
    ):
        with pytest.raises(Refusal) as refused:
            access.check(LOCAL, headers)
        assert refused.value.status == 403


def test_state_routes_always_need_the_token(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running(make(tmp_path)) as client:
            for method, path in (
                ("GET", "/state"),
                *(("POST", f"/state/{c}") for c in ("snapshot", "rollback", "reset")),
            ):
                refused = await client.request(method, path)
                assert refused.status_code == 401
                assert refused.headers["www-authenticate"] == "Bearer"
                assert (await client.request(method, path, headers=BEARER)).status_code in (200, 409)
            assert (await predict(client, pixels(1)[0])).status_code == 200

    run(scenario())


@pytest.mark.parametrize("path", ["/north/state", "/north/state/reset"])
def test_below_another_path_the_state_needs_the_token_too(path: str) -> None:
    mounted = {**LOCAL, "path": path, "root_path": "/north"}
    with pytest.raises(Refusal, match="Authorization"):
        Access(TOKEN).check(mounted, {"host": "localhost"})
    Access(TOKEN).check({**mounted, "path": "/north/predict"}, {"host": "localhost"})
    Access(TOKEN).check(
        {**ELSEWHERE, "path": "/north/v2/health/live", "root_path": "/north"}, {"host": "model.example"}
    )
    # A path that only begins with the same letters is not below it.
    Access(TOKEN).check({**mounted, "path": "/northern"}, {"host": "localhost"})


def test_a_service_whose_lifespan_did_not_run_refuses(tmp_path: Path) -> None:
    async def scenario() -> None:
        transport = httpx.ASGITransport(make(tmp_path))
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
            response = await predict(client, pixels(1)[0])
        assert response.status_code == 503
        assert "has not started" in response.json()["error"]

    run(scenario())


@pytest.mark.parametrize("headers", [{"host": "["}, {"host": "localhost", "origin": "http://["}])
def test_malformed_addresses_in_headers_are_refused(headers: dict[str, str]) -> None:
    with pytest.raises(Refusal, match="Host and Origin") as refused:
        Access(TOKEN).check(LOCAL, headers)
    assert refused.value.status == 400


def test_an_internal_error_is_counted_and_has_the_headers_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    application = make(tmp_path)
    service = service_of(application)

    def fail(files: object) -> None:
        raise RuntimeError("secret")

    async def scenario() -> None:
        async with running(application) as client:
            monkeypatch.setattr(type(service.images), "decode", lambda self, files: fail(files))
            response = await predict(client, pixels(1)[0])
            counted = (await client.get("/metrics")).text
        assert response.status_code == 500
        assert response.json() == {"error": "an internal error (RuntimeError); the log has the cause."}
        assert response.headers["x-frame-options"] == "DENY"
        assert 'cretta_requests_total{code="500"} 1.0' in counted

    run(scenario())


def test_a_refused_upload_closes_its_connection(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "DRAIN_SECONDS", 0.0)
    with (
        listening(make(tmp_path)) as address,
        socket.create_connection(("127.0.0.1", int(address.rpartition(":")[2]))) as client,
    ):
        client.settimeout(LONG)
        client.sendall(b"POST /state/reset HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1000\r\n\r\nx")
        answer = b""
        while part := client.recv(4096):  # until the server closes
            answer += part
    assert answer.startswith(b"HTTP/1.1 401")
    assert b"connection: close" in answer.lower()


def test_the_rest_of_a_small_refused_upload_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Closing the connection before that resets it, and the client may lose the response."""
    monkeypatch.setattr(limits, "DRAIN_SECONDS", LONG)
    with (
        listening(make(tmp_path)) as address,
        socket.create_connection(("127.0.0.1", int(address.rpartition(":")[2]))) as client,
    ):
        client.settimeout(LONG)
        client.sendall(b"POST /state/reset HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1000\r\n\r\nx")
        client.sendall(999 * b"x")
        answer = client.recv(4096)
        assert answer.startswith(b"HTTP/1.1 401")
        assert b"connection: close" not in answer.lower()
        client.sendall(b"GET /v2/health/live HTTP/1.1\r\nHost: localhost\r\n\r\n")  # the connection can be used again
        while b"HTTP/1.1 200" not in answer:
            part = client.recv(4096)
            assert part
            answer += part


def test_a_rollback_to_an_unknown_field_is_refused(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running(make(tmp_path)) as client:
            await client.post("/state/snapshot", headers=BEARER)
            response = await client.post("/state/rollback", json={"name": "snapshot-1"}, headers=BEARER)
        assert response.status_code == 422
        assert "name" in response.json()["error"]

    run(scenario())


def test_every_response_has_security_headers(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running(make(tmp_path)) as client:
            responses = [
                await client.get("/"),
                await client.get("/nothing"),
                await client.get("/state"),
                await predict(client, pixels(1)[0]),
            ]
        assert [response.status_code for response in responses] == [200, 404, 401, 200]
        for response in responses:
            assert response.headers["x-content-type-options"] == "nosniff"
            assert response.headers["x-frame-options"] == "DENY"
            assert response.headers["cache-control"] == "no-store"
            assert "default-src 'none'" in response.headers["content-security-policy"]
            assert "unsafe" not in response.headers["content-security-policy"]
        assert responses[1].json() == {"error": "there is no route /nothing; /openapi.json lists all."}

    run(scenario())


def test_what_is_wrong_with_a_method_or_a_form_is_said(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running(make(tmp_path)) as client:
            method = await client.get("/predict")
            form = await client.post("/predict", data={"adapt": "false"}, files={"images": b"not a field"})
        assert (method.status_code, method.headers["allow"]) == (405, "POST")
        assert method.json() == {"error": "expected the method POST, got GET."}
        assert form.status_code == 400
        assert "256 files and nothing else, as by curl -F images=@photo.png" in form.json()["error"]

    run(scenario())


def test_limits_of_bodies(tmp_path: Path) -> None:
    async def scenario() -> None:
        image = png(pixels(1)[0])
        async with running(make(tmp_path, max_body=len(image), max_images=2)) as client:
            kind = {"content-type": "image/png"}
            assert (await client.post("/predict", content=image, headers=kind)).status_code == 200
            large = await client.post("/predict", content=image + b"x", headers=kind)
            assert large.status_code == 413
            assert f"at most {len(image)} bytes" in large.json()["error"]

            async def parts() -> AsyncIterator[bytes]:  # without Content-Length
                for _ in range(9):
                    yield image

            assert (await client.post("/predict", content=parts(), headers=kind)).status_code == 413
            packed = await client.post("/predict", content=image, headers={**kind, "content-encoding": "gzip"})
            assert packed.status_code == 415
        async with running(make(tmp_path, max_images=2)) as client:
            files = [("images", (f"{index}.png", image)) for index in range(3)]
            assert (await client.post("/predict", files=files[:2])).status_code == 200
            many: httpx.Response = await client.post("/predict", files=files)
            assert many.status_code in (400, 413)

    run(scenario())
