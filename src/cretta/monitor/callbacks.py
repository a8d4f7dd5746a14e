"""Callbacks for ``adapter.on_step`` that send records to other tools; none of these is a dependency of cretta."""

from __future__ import annotations

from collections.abc import Callable
from itertools import count
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from cretta.method import Record

Callback = Callable[["Record"], None]


def scalars(record: Record) -> dict[str, float]:
    """Return the numbers of a record, by name."""
    states: dict[str, Any] = {
        "size": record.size,
        "adapted": record.adapted,
        "skipped": record.skipped,
        "alarm": bool(record.guard),
    }
    return {name: float(value) for name, value in {**states, **record.values}.items()}


def tensorboard(writer: Any, prefix: str = "cretta") -> Callback:
    """Return a callback that writes to a ``torch.utils.tensorboard.SummaryWriter``."""
    steps = count()

    def write(record: Record) -> None:
        step = next(steps)
        for name, value in scalars(record).items():
            writer.add_scalar(f"{prefix}/{name}", value, step)

    return write


def wandb(run: Any, prefix: str = "cretta") -> Callback:
    """Return a callback that logs to a run of Weights & Biases, from ``wandb.init()``."""
    return lambda record: run.log({f"{prefix}/{name}": value for name, value in scalars(record).items()})


def mlflow(client: Any, prefix: str = "cretta") -> Callback:
    """Return a callback that logs to MLflow; ``client`` is the module ``mlflow`` with an active run."""
    steps = count()
    return lambda record: client.log_metrics(
        {f"{prefix}.{name}": value for name, value in scalars(record).items()}, step=next(steps)
    )


def prometheus(registry: Any = None, prefix: str = "cretta") -> Callback:
    """Return a callback that sets gauges in a registry of ``prometheus_client``, by default its global one."""
    try:
        from prometheus_client import REGISTRY, Gauge
    except ImportError:
        from cretta.errors import OptionError

        raise OptionError(
            "expected the package prometheus_client; install it by pip install prometheus-client."
        ) from None
    gauges: dict[str, Any] = {}
    target = REGISTRY if registry is None else registry

    def write(record: Record) -> None:
        for name, value in scalars(record).items():
            if name not in gauges:
                gauges[name] = Gauge(f"{prefix}_{name}", f"{name} of the last batch", registry=target)
            gauges[name].set(value)

    return write
