from __future__ import annotations

import threading

import pytest

from cretta.errors import OptionError
from cretta.prefetch import prefetch
from processes import LONG


def test_work_stays_a_little_ahead() -> None:
    begun = [threading.Event() for _ in range(20)]

    def work(job: int) -> int:
        begun[job].set()
        return job * job

    for job, result in enumerate(prefetch(work, range(20), depth=2)):
        assert result == job * job
        # The next two are done while the caller works on this one, and no others.
        assert all(event.wait(LONG) for event in begun[: job + 3])
        assert not any(event.is_set() for event in begun[job + 3 :])
    assert job == 19


@pytest.mark.parametrize("threads", [1, 3])
def test_results_come_in_order_and_each_job_is_done_once(threads: int) -> None:
    done: list[int] = []

    def work(job: int) -> int:
        done.append(job)
        return -job

    assert list(prefetch(work, range(50), depth=8, threads=threads)) == [-job for job in range(50)]
    assert sorted(done) == list(range(50))


@pytest.mark.parametrize("depth", [0, 2])
def test_an_error_is_raised_in_its_turn(depth: int) -> None:
    def work(job: int) -> int:
        if job == 3:
            raise OptionError("three")
        return job

    results = prefetch(work, range(9), depth=depth)
    assert [next(results) for _ in range(3)] == [0, 1, 2]
    with pytest.raises(OptionError, match="three"):
        next(results)


def test_leaving_early_ends_the_threads() -> None:
    results = prefetch(str, range(9), depth=2)
    next(results)
    results.close()
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("cretta-read")]


def test_without_depth_the_callers_thread_does_the_work() -> None:
    threads = prefetch(lambda job: threading.current_thread(), range(3), depth=0)
    assert set(threads) == {threading.main_thread()}
