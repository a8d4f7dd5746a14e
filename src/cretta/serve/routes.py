"""The routes for predictions, for the state of the model, for metrics and for the page."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Annotated, Any

from fastapi import APIRouter, Body, Query, Request
from fastapi.responses import HTMLResponse, JSONResponse, Response, StreamingResponse
from starlette.datastructures import UploadFile
from starlette.exceptions import HTTPException

from cretta.serve import schemas
from cretta.serve.decode import MULTIPART, TYPES
from cretta.serve.live import label
from cretta.serve.page import page
from cretta.serve.refusal import Refusal
from cretta.serve.requests import Prediction
from cretta.serve.service import Service


def router(service: Service) -> APIRouter:
    """Return the routes of a service."""
    routes = APIRouter()
    pages = 0

    @routes.post(
        "/predict",
        response_model=schemas.Predicted,
        responses=schemas.PREDICT_ERRORS,
        openapi_extra=schemas.PREDICT_BODY,
        summary="Predict images, and adapt to them",
    )
    async def predict(
        request: Request,
        adapt: Annotated[bool, Query(description="Whether the model may learn from these images.")] = True,
        probabilities: Annotated[bool, Query(description="Return the probabilities of all classes.")] = False,
    ) -> Response:
        files = await read_files(request, service.settings.max_images)
        images = await service.decode(lambda: service.images.decode(files))
        predictions = await service.predict(images, adapt=adapt, gone=disconnected(request))
        entries = [_entry(service, prediction, probabilities) for prediction in predictions]
        return JSONResponse({"model": service.name, "run": service.run, "predictions": entries})

    @routes.get("/state", response_model=schemas.State, responses=schemas.errors(), summary="The state of the service")
    async def state() -> Response:
        return JSONResponse(service.state())

    @routes.post(
        "/state/snapshot",
        response_model=schemas.State,
        responses=schemas.errors(500, 504, 507),
        summary="Save a snapshot of the adapted model",
    )
    async def snapshot() -> Response:
        return JSONResponse(await service.command("snapshot"))

    @routes.post(
        "/state/rollback",
        response_model=schemas.State,
        responses=schemas.errors(400, 409, 422, 500, 504),
        summary="Restore a snapshot",
    )
    async def rollback(to: Annotated[schemas.Rollback | None, Body()] = None) -> Response:
        return JSONResponse(await service.command("rollback", to.snapshot if to is not None else None))

    @routes.post(
        "/state/reset",
        response_model=schemas.State,
        responses=schemas.errors(500, 504),
        summary="Restore the source model",
    )
    async def reset() -> Response:
        return JSONResponse(await service.command("reset"))

    @routes.get("/metrics", response_class=Response, responses=schemas.errors(), summary="Metrics for Prometheus")
    async def metrics() -> Response:
        return Response(service.metrics.text(), media_type=service.metrics.content_type)

    @routes.get("/", response_class=HTMLResponse, include_in_schema=False)
    async def index() -> Response:
        content, policy = page(service.name)
        return HTMLResponse(content, headers={"content-security-policy": policy})

    @routes.get("/events", include_in_schema=False)
    async def events() -> Response:
        nonlocal pages
        if pages >= service.settings.pages:
            raise Refusal(503, f"{pages} pages are open already, the most allowed; close one.", retry_after=5)

        async def stream() -> Any:
            nonlocal pages
            pages += 1
            try:
                async for message in service.live.stream(service.state, service.labels):
                    yield message
            finally:
                pages -= 1

        return StreamingResponse(stream(), media_type="text/event-stream")

    return routes


async def read_files(request: Request, most: int) -> list[bytes]:
    """Return the files in a request: its body, or those of a form."""
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    body = await request.body()
    if kind in TYPES:
        return [body]
    if kind != MULTIPART:
        raise Refusal(415, f"expected the content type {', '.join(TYPES)} or {MULTIPART}, got {kind or 'none'}.")
    try:
        async with request.form(max_files=most, max_fields=0) as form:
            return [await part.read() for _, part in form.multi_items() if isinstance(part, UploadFile)]
    except HTTPException as error:
        message = f"expected a form of at most {most} files and nothing else, as by curl -F images=@photo.png"
        raise Refusal(400, f"{message} ({error.detail}).") from None


def disconnected(request: Request) -> Callable[[], Awaitable[None]]:
    """Return a function that returns when the client of a request, whose body was read, has gone."""

    async def gone() -> None:
        while (await request.receive())["type"] != "http.disconnect":
            pass

    return gone


def _entry(service: Service, prediction: Prediction, probabilities: bool) -> dict[str, Any]:
    entry = {
        "class": prediction.index,
        "label": label(service.labels, prediction.index),
        "probability": float(prediction.probabilities[prediction.index]),
        "energy": prediction.energy,
        "sequence": prediction.sequence,
        "batch": prediction.batch,
        "step": prediction.step,
    }
    return entry | ({"probabilities": prediction.probabilities.tolist()} if probabilities else {})
