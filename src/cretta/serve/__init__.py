"""The service: predictions over HTTP by a model that adapts, with snapshots, metrics and a page to watch."""

try:
    from cretta.serve.application import app
except ModuleNotFoundError as error:
    if (error.name or "").partition(".")[0] not in ("fastapi", "starlette", "prometheus_client", "pydantic"):
        raise
    raise ModuleNotFoundError(
        f"the service needs {error.name}, which is not installed: pip install 'cretta[serve]'.", name=error.name
    ) from None
from cretta.serve.settings import Settings

__all__ = ["Settings", "app"]
