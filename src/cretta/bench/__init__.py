"""Runs and their results: described completely, executed once, stored."""

from cretta.bench.benchmarks import Benchmark, benchmark
from cretta.bench.context import RunContext
from cretta.bench.engines import Engine, engine
from cretta.bench.grid import Listener, expand, run_all
from cretta.bench.result import BatchRow, Result
from cretta.bench.run import Buffer, Run
from cretta.bench.store import Store
from cretta.data.domains import Domain

__all__ = [
    "BatchRow",
    "Benchmark",
    "Buffer",
    "Domain",
    "Engine",
    "Listener",
    "Result",
    "Run",
    "RunContext",
    "Store",
    "benchmark",
    "engine",
    "expand",
    "run_all",
]
