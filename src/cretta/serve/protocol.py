"""The routes of the Open Inference Protocol V2."""

from __future__ import annotations

from importlib.metadata import version
from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse, Response

from cretta.serve import schemas, v2
from cretta.serve.refusal import Refusal
from cretta.serve.routes import disconnected
from cretta.serve.service import Service


def router(service: Service) -> APIRouter:
    """Return the routes of a service."""
    routes = APIRouter(prefix="/v2")

    def check(name: str, number: str = "1") -> None:
        if name != service.name or number != "1":
            raise Refusal(404, f"expected the model {service.name!r}, version '1', got {name!r}, {number!r}.")

    def described() -> dict[str, Any]:
        return v2.metadata(service.name, service.images, service.outputs)

    def health(good: bool) -> Response:
        if good:
            return JSONResponse({})
        status = "shutting down" if service.stopping else "not answering: the writer shows no sign of life"
        raise Refusal(503, f"the service is {status}.")

    @routes.get("", response_model=schemas.Server, responses=schemas.errors(), summary="The server")
    async def server() -> Response:
        facts = {"name": "cretta", "version": version("cretta"), "extensions": list(v2.EXTENSIONS)}
        return JSONResponse(facts)

    @routes.get("/health/live", responses=schemas.errors(503), summary="Whether the writer is alive")
    async def live() -> Response:
        return health(service.alive)

    @routes.get("/health/ready", responses=schemas.errors(503), summary="Whether requests are accepted")
    async def ready() -> Response:
        return health(service.ready)

    @routes.get("/models/{name}", response_model=schemas.Model, responses=schemas.errors(404), summary="The model")
    async def model(name: str) -> Response:
        check(name)
        return JSONResponse(described())

    @routes.get("/models/{name}/versions/{number}", include_in_schema=False)
    async def model_version(name: str, number: str) -> Response:
        check(name, number)
        return await model(name)

    @routes.get("/models/{name}/ready", responses=schemas.errors(404, 503), summary="Whether the model is ready")
    async def model_ready(name: str) -> Response:
        check(name)
        return health(service.ready)

    @routes.get("/models/{name}/versions/{number}/ready", include_in_schema=False)
    async def version_ready(name: str, number: str) -> Response:
        check(name, number)
        return await model_ready(name)

    @routes.post("/repository/index", summary="The list of models", responses=schemas.errors())
    async def repository() -> Response:
        state = "READY" if service.ready else "UNAVAILABLE"
        return JSONResponse([{"name": service.name, "version": "1", "state": state, "reason": ""}])

    @routes.post(
        "/models/{name}/infer",
        response_model=schemas.Inferred,
        responses={200: schemas.INFERRED_BYTES, **schemas.errors(400, 404, 408, 413, 415, 422, 500, 503, 504)},
        openapi_extra=schemas.infer_body(*service.images.size),
        summary="Predict images, and adapt to them",
    )
    async def infer(request: Request, name: str) -> Response:
        check(name)
        body = await request.body()
        header = request.headers.get(v2.HEADER)
        parsed = await service.decode(lambda: v2.parse(body, header, service.images))
        predictions = await service.predict(parsed.images, adapt=parsed.adapt, gone=disconnected(request))
        content, length = v2.response(service.name, parsed, predictions)
        if length is None:
            return Response(content, media_type="application/json")
        return Response(content, media_type="application/octet-stream", headers={v2.HEADER: str(length)})

    @routes.post("/models/{name}/versions/{number}/infer", include_in_schema=False)
    async def version_infer(request: Request, name: str, number: str) -> Response:
        check(name, number)
        return await infer(request, name)

    return routes
