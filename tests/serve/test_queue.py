"""The queue: first in, first out, bounded, all images of a request or none."""

from __future__ import annotations

import asyncio

import pytest

from cretta.serve.queue import ImageQueue
from cretta.serve.refusal import Refusal
from cretta.serve.requests import Request
from serving import pixels


def test_images_leave_in_the_order_in_which_they_came() -> None:
    async def scenario() -> None:
        queue = ImageQueue(10)
        first, second = Request(list(pixels(3))), Request(list(pixels(2)))
        queue.put(first)
        queue.put(second)
        assert [item.sequence for item in queue.take(4, wait=0, patience=0)] == [0, 1, 2, 3]
        assert [item.request for item in queue.take(4, wait=0, patience=0)] == [second]
        assert queue.take(4, wait=0, patience=0) == []

    asyncio.run(scenario())


@pytest.mark.parametrize("status", [429, 503])
def test_a_request_that_does_not_fit_is_refused_as_a_whole(status: int) -> None:
    async def scenario() -> None:
        queue = ImageQueue(4, full_status=status)
        queue.put(Request(list(pixels(3))))
        with pytest.raises(Refusal, match="3 images are waiting, of 4; try again later") as refused:
            queue.put(Request(list(pixels(2))))
        assert (refused.value.status, refused.value.retry_after) == (status, 1)
        queue.put(Request(list(pixels(1))))
        assert [item.sequence for item in queue.take(9, wait=0, patience=0)] == [0, 1, 2, 3]
        with pytest.raises(Refusal, match="at most 4 images, got 5") as large:
            queue.put(Request(list(pixels(5))))
        assert large.value.status == 413

    asyncio.run(scenario())


def test_a_dropped_request_makes_room() -> None:
    async def scenario() -> None:
        queue = ImageQueue(4)
        first, second = Request(list(pixels(3))), Request(list(pixels(1)))
        queue.put(first)
        queue.put(second)
        assert queue.drop(first)
        assert not queue.drop(first)
        queue.put(Request(list(pixels(3))))
        assert [item.sequence for item in queue.take(9, wait=0, patience=0)] == [3, 4, 5, 6]

    asyncio.run(scenario())


def test_a_batch_waits_to_be_filled_unless_the_service_ends() -> None:
    async def scenario() -> None:
        queue = ImageQueue(8)
        queue.put(Request(list(pixels(1))))
        waiting = asyncio.create_task(asyncio.to_thread(queue.take, 3, 1e6, 0))
        queue.put(Request(list(pixels(2))))
        assert len(await waiting) == 3
        queue.put(Request(list(pixels(1))))
        waiting = asyncio.create_task(asyncio.to_thread(queue.take, 3, 1e6, 0))
        queue.drain()
        assert len(await waiting) == 1
        with pytest.raises(Refusal, match="shutting down") as refused:
            queue.put(Request(list(pixels(1))))
        assert refused.value.status == 503

    asyncio.run(scenario())
