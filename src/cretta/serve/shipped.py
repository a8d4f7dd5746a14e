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


def service_options(method: str, options: dict[str, Any], *, guarded: bool = True) -> dict[str, Any]:
    """Return the options of a method with the defaults of the service.

    Answers do not wait for the update, and a guard is on, unless the method learns nothing.
    """
    learns = methods.get(method).facts.updates != "nothing"
    return {"predict": "before"} | ({"guard": "rollback"} if learns and guarded else {}) | options


def shipped_adapter(method: str = "cretta", **options: Any) -> tuple[Adapter[Any], tuple[str, ...]]:
    """Return an adapter of the shipped model, and the names of its classes."""
    opened = open_model(MODEL)
    return open_adapter(opened.net, method, BUFFER, None, service_options(method, options)), opened.classes
