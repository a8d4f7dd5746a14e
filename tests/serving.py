"""A service of a tiny network, and clients for it; nothing here depends on time."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import io
import socket
import threading
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from PIL import Image

import cretta
import textbook
from processes import LONG

pytest.importorskip("fastapi", reason="fastapi is not installed: the service is not tested")
pytest.importorskip("prometheus_client", reason="prometheus-client is not installed: the service is not tested")
pytest.importorskip("uvicorn", reason="uvicorn is not installed: the service is not tested")
pytest.importorskip("httpx", reason="httpx is not installed: the service is not tested")

import httpx
from fastapi import FastAPI

from cretta.serve import app
from cretta.serve.service import Service

TOKEN = "a token for tests only"
BASE = "http://localhost"
BEARER = {"Authorization": f"Bearer {TOKEN}"}


@functools.cache
def http() -> httpx.Client:
    """A client for services that listen; threads may share it, and to make one costs more than a request.

    A connection is not used again: the service may close it at the moment when the next request is sent.
    """
    return httpx.Client(timeout=LONG, headers={"connection": "close"})


def adapter(method: str = "cretta", **options: Any) -> cretta.Adapter[Any]:
    """An adapter of a small network on images of 8 x 8."""
    labels = torch.arange(20) % textbook.CLASSES
    buffer = cretta.SourceBuffer(pixels(20, seed=9), labels, augment="none")
    chosen = (
        {"predict": "before", "statistics": "running", "guard": "rollback"}
        if method not in ("source", "bn_adapt")
        else {}
    )
    return cretta.adapt(textbook.small_net(), method, buffer=buffer, **{**chosen, **options})


def pixels(count: int, seed: int = 0) -> NDArray[np.uint8]:
    side = textbook.SIDE
    return np.random.default_rng(seed).integers(0, 256, (count, side, side, 3), dtype=np.uint8)


def png(image: NDArray[np.uint8], form: str = "PNG") -> bytes:
    content = io.BytesIO()
    Image.fromarray(image).save(content, form)
    return content.getvalue()


def npy(array: NDArray[Any]) -> bytes:
    content = io.BytesIO()
    np.save(content, array)
    return content.getvalue()


def make(folder: Path, model: cretta.Adapter[Any] | None = None, **settings: Any) -> FastAPI:
    """An application; batches do not wait to be filled, and nothing ends because the machine is busy."""
    labels = [f"class {index}" for index in range(textbook.CLASSES)]
    chosen = {"wait_ms": 0.0, "rate": 0.0, "timeout": LONG, "drain": LONG, **settings}
    return app(model or adapter(), folder=folder, token=TOKEN, labels=labels, **chosen)


def service_of(application: FastAPI) -> Service:
    service: Service = application.state.service
    return service


@contextlib.asynccontextmanager
async def running(application: FastAPI) -> AsyncIterator[httpx.AsyncClient]:
    """A client of an application in this process; it is shut down at the end."""
    # The client lets the application's own errors pass as responses.
    transport = httpx.ASGITransport(application, raise_app_exceptions=False)
    async with (
        application.router.lifespan_context(application),
        httpx.AsyncClient(transport=transport, base_url=BASE, timeout=LONG) as client,
    ):
        yield client


def run(coroutine: Coroutine[Any, Any, None]) -> None:
    asyncio.run(asyncio.wait_for(coroutine, LONG))


async def predict(client: httpx.AsyncClient, image: NDArray[np.uint8], **query: Any) -> httpx.Response:
    headers = {"content-type": "image/png"}
    return await client.post("/predict", content=png(image), params=query, headers=headers)


class Gate:
    """Holds the batches of a service until they are released."""

    def __init__(self, application: FastAPI) -> None:
        self.writer = service_of(application).writer
        self.entered = threading.Semaphore(0)
        self.permits = threading.Semaphore(0)
        self._process = self.writer.process
        self.writer.process = self._held  # type: ignore[method-assign]  # waits first

    def _held(self, items: Sequence[Any]) -> None:
        self.entered.release()
        assert self.permits.acquire(timeout=LONG)
        self._process(items)

    def release(self, batches: int = 1) -> None:
        self.permits.release(batches)

    async def wait(self) -> None:
        """Wait until a batch is formed and held."""
        assert await asyncio.to_thread(self.entered.acquire, timeout=LONG)


@contextlib.contextmanager
def listening(application: FastAPI) -> Iterator[str]:
    """Serve an application by uvicorn in a thread; yield its address."""
    from cretta.serve.server import _Server, bind, configuration

    listener = bind("127.0.0.1", 0)
    started = threading.Event()
    server = _Server(configuration(application), service_of(application), started.set)
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
    thread.start()
    assert started.wait(LONG)
    try:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    finally:
        server.handle_exit(15, None)
        thread.join(LONG)
        assert not thread.is_alive()


async def until(condition: Callable[[], bool]) -> None:
    """Wait until another task or thread has made the condition true."""
    while not condition():
        await asyncio.sleep(0.001)


def free_port() -> int:
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        return int(bound.getsockname()[1])
