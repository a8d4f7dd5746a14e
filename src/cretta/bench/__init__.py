"""Runs and their results: described completely, executed once, kept."""

from cretta.bench.benchmarks import Benchmark, benchmark
from cretta.bench.grid import collect, product, run_all
from cretta.bench.result import BatchRow, Measures, Result
from cretta.bench.run import Buffer, Run
from cretta.bench.store import Store
from cretta.bench.workshop import Workshop

__all__ = [
    "BatchRow",
    "Benchmark",
    "Buffer",
    "Measures",
    "Result",
    "Run",
    "Store",
    "Workshop",
    "benchmark",
    "collect",
    "product",
    "run_all",
]
