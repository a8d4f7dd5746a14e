"""Doing the next jobs while somebody works on the results of the last."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

Job = TypeVar("Job")
Result = TypeVar("Result")


def ahead(
    jobs: Iterable[Job], work: Callable[[Job], Result], depth: int = 2
) -> Generator[tuple[Job, Result], None, None]:
    """Each job with its result, in order; a thread works up to ``depth`` jobs ahead, so memory is bounded.

    An error of ``work`` is raised when its job's turn comes. Close the generator to leave early.

    >>> list(ahead([1, 2, 3], lambda number: 10 * number))
    [(1, 10), (2, 20), (3, 30)]
    """
    waiting: deque[tuple[Job, Future[Result]]] = deque()
    with ThreadPoolExecutor(1, thread_name_prefix="cretta-read") as pool:
        try:
            for job in jobs:
                waiting.append((job, pool.submit(work, job)))
                if len(waiting) > depth:
                    first, future = waiting.popleft()
                    yield first, future.result()
            while waiting:
                first, future = waiting.popleft()
                yield first, future.result()
        finally:
            for _, future in waiting:
                future.cancel()
