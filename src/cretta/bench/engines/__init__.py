"""Where runs are executed: in this process, in several processes of this machine, or on a Ray cluster."""

from cretta.bench.engines.collect import ENGINES, Engine, engine

__all__ = ["ENGINES", "Engine", "engine"]
