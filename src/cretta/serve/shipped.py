"""The model that comes with cretta, ready to be served; and what the service sets where the user does not."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from cretta import methods
from cretta.models import open_model
from cretta.predict.adapter import open_adapter

if TYPE_CHECKING:
    from cretta.adapter import Adapter

MODEL = "wrn-40-2-cifar10"
BUFFER = "embedded"


def service_options(
    method: str, options: dict[str, Any], preset: str | None = None, *, guarded: bool = True
) -> dict[str, Any]:
    """Return the options of a method with the defaults of the service, where neither options nor preset set them.

    Answers do not wait for the update; statistics fit the size of the batch; a guard is on, unless the method learns
    nothing.
    """
    adapts = methods.get(method)
    defaults = {"predict": "before"}
    if adapts.facts.statistics == "batch":
        defaults["statistics"] = "auto"
    if adapts.facts.updates != "nothing" and guarded:
        defaults["guard"] = "rollback"
    chosen = adapts.preset_options(preset)
    return {name: value for name, value in defaults.items() if name not in chosen} | options


def shipped_adapter(method: str = "cretta", **options: Any) -> tuple[Adapter[Any], tuple[str, ...]]:
    """Return an adapter of the shipped model, and the names of its classes."""
    opened = open_model(MODEL)
    return open_adapter(opened.net, method, BUFFER, None, service_options(method, options)), opened.classes
