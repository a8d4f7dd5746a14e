"""Do the next jobs in threads while the caller works on the results of the last ones."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

Job = TypeVar("Job")
Result = TypeVar("Result")


def prefetch(
    work: Callable[[Job], Result], jobs: Iterable[Job], *, depth: int, threads: int = 1
) -> Generator[Result, None, None]:
    """Yield the result of each job in order; threads work up to ``depth`` jobs ahead, so that memory is bounded.

    An error of ``work`` is raised when its job's turn comes. Close the generator to leave early. With ``depth=0`` each
    job is done by the caller's thread when its result is asked for.

    >>> list(prefetch(lambda number: 10 * number, [1, 2, 3], depth=2))
    [10, 20, 30]
    """
    if not depth:
        yield from map(work, jobs)
        return
    waiting: deque[Future[Result]] = deque()
    with ThreadPoolExecutor(threads, thread_name_prefix="cretta-read") as pool:
        try:
            for job in jobs:
                waiting.append(pool.submit(work, job))
                if len(waiting) > depth:
                    yield waiting.popleft().result()
            while waiting:
                yield waiting.popleft().result()
        finally:
            for future in waiting:
                future.cancel()
