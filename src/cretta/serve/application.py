"""The ASGI application: a FastAPI app with the routes of a service, its access rules and its life."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import Response
from starlette.exceptions import HTTPException

from cretta.errors import OptionError
from cretta.serve import protocol, routes
from cretta.serve.access import Access
from cretta.serve.decode import ImageFormat
from cretta.serve.gate import Gate, refusal_parts
from cretta.serve.refusal import Refusal
from cretta.serve.service import Service
from cretta.serve.settings import Settings
from cretta.storage import atomic_write
from cretta.storage.files import make_folder

if TYPE_CHECKING:
    from cretta.adapter import Adapter
    from cretta.data.dataset import Size

DESCRIPTION = """Predictions by a model that adapts to the images it sees. Errors have the form `{"error": message}`."""


def app(
    adapter: Adapter[Any] | None = None,
    *,
    folder: str | Path = "cretta-serve",
    token: str | None = None,
    local: bool | None = None,
    name: str = "cretta",
    labels: Sequence[str] = (),
    size: Size = None,
    **settings: Any,
) -> FastAPI:
    """Return an ASGI application that serves ``adapter``, by default the shipped model with its buffer.

    Snapshots are stored in ``folder``, for one process at a time. ``labels`` are the names of the classes. ``size`` is
    what images are scaled to, as :class:`~cretta.data.FileDataset` says; by default the size of the buffer's images.
    ``settings`` are those of :class:`~cretta.serve.Settings`.

    Without ``token``, one is made and stored in ``folder``. It is needed for the routes below /state, and for all on
    connections that are not to a loopback address; ``local=False`` needs it on all connections. Run it with one worker
    process: the model is in it.
    """
    options = Settings.make("the service", {}, settings)
    if adapter is None:
        from cretta.serve.shipped import shipped_adapter

        adapter, labels = shipped_adapter()
    if size is None:
        if adapter.buffer is None:
            raise OptionError("expected size, such as size=224: without a buffer, the size of images is not known.")
        height, width = adapter.buffer.images.shape[-2:]
        size = (height, width)
    images = ImageFormat(size, options.max_pixels, options.max_images)
    service = Service(adapter, images, folder=folder, settings=options, name=name, labels=labels)
    return application(service, Access(token or stored_token(Path(folder)), local))


def application(service: Service, access: Access) -> FastAPI:
    """Return the application of a service."""

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        await asyncio.to_thread(service.start)
        try:
            yield
        finally:
            service.live.close()
            await asyncio.shield(asyncio.to_thread(service.stop))

    made = FastAPI(
        title="cretta",
        version=version("cretta"),
        description=DESCRIPTION,
        lifespan=lifespan,
        docs_url=None,
        redoc_url=None,
    )
    made.state.service = service
    made.include_router(routes.router(service))
    made.include_router(protocol.router(service))
    made.add_middleware(Gate, access=access, settings=service.settings, metrics=service.metrics)

    async def refused(request: Request, error: Exception) -> Response:
        more: Mapping[str, str] = {}
        if isinstance(error, HTTPException):
            more = error.headers or {}
            message = str(error.detail)
            if error.status_code == 404:
                message = f"there is no route {request.url.path}; /openapi.json lists all."
            elif error.status_code == 405:
                message = f"expected the method {more.get('Allow')}, got {request.method}."
            error = Refusal(error.status_code, message)
        elif isinstance(error, RequestValidationError):
            details = "; ".join(f"{'.'.join(map(str, entry['loc']))}: {entry['msg']}" for entry in error.errors())
            error = Refusal(422, f"expected other values: {details}.")
        assert isinstance(error, Refusal)
        status, headers, content = refusal_parts(error)
        return Response(content, status, {**headers, **more})

    for kind in (Refusal, HTTPException, RequestValidationError):
        made.add_exception_handler(kind, refused)
    return made


def stored_token(folder: Path) -> str:
    """Return the token of a folder; make one, readable by its owner only, if there is none."""
    path = folder / "token"
    if path.is_file():
        token = path.read_text("utf-8").strip()
        if token:
            return token
    make_folder(folder)
    token = secrets.token_urlsafe(24)
    with atomic_write(path) as temporary:
        temporary.touch(mode=0o600)
        temporary.write_text(token + "\n", "utf-8")
    return token
