"""The writer: order, answers ahead of the update, and that no error, gone client or hang is lost."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import threading
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
import torch

import textbook
from cretta.data.dataset import as_batch
from cretta.serve.live import Live
from cretta.serve.refusal import Refusal
from processes import LONG
from serving import Gate, adapter, make, pixels, png, predict, run, running, service_of, until


@pytest.mark.parametrize("each_sends", [10, pytest.param(79, marks=pytest.mark.slow, id="5056 images")])
def test_64_clients_get_each_answer_once_and_the_library_gives_the_same(tmp_path: Path, each_sends: int) -> None:
    """Replay all answers, by their sequence numbers and batches, in a new adapter."""
    clients = 64
    images = pixels(clients * each_sends)
    answers: dict[int, dict[str, Any]] = {}

    async def scenario() -> None:
        async with running(make(tmp_path, adapter(guard=None), batch_size=16, snapshot_every=0)) as client:

            async def send(first: int) -> None:
                for index in range(first, len(images), clients):
                    response = await predict(client, images[index], probabilities=True)
                    (answers[index],) = response.json()["predictions"]

            await asyncio.gather(*map(send, range(clients)))

    run(scenario())
    assert sorted(answers) == list(range(len(images)))
    order = sorted(answers, key=lambda index: answers[index]["sequence"])
    assert [answers[index]["sequence"] for index in order] == list(range(len(images)))
    batches = [answers[index]["batch"] for index in order]
    assert batches == sorted(batches)
    model = adapter(guard=None)
    step = 0
    for batch in dict.fromkeys(batches):
        members = [index for index in order if answers[index]["batch"] == batch]
        logits = model(as_batch(images[members]))
        assert len(members) <= 16
        assert [answers[index]["probabilities"] for index in members] == logits.softmax(-1).tolist()
        assert {answers[index]["step"] for index in members} == {step}
        step += model.last.adapted
    assert step > 20


def test_answers_do_not_wait_for_the_update(tmp_path: Path) -> None:
    model = adapter(guard=None)
    application = make(tmp_path, model)
    started, release = threading.Event(), threading.Event()
    step = model.step

    def held() -> None:
        started.set()
        assert release.wait(LONG)
        step()

    model.step = held  # type: ignore[method-assign]  # the optimizer's, after the backward pass

    async def scenario() -> None:
        async with running(application) as client:
            response = await predict(client, pixels(1)[0])  # returns while the update is held
            assert response.status_code == 200
            assert await asyncio.to_thread(started.wait, LONG)
            assert service_of(application).writer.step == 0
            release.set()
            await until(lambda: service_of(application).writer.step == 1)

    run(scenario())


def test_an_error_in_the_model_is_an_answer_and_the_loop_goes_on(tmp_path: Path) -> None:
    model = adapter()
    forward, broken = model.forward, threading.Event()

    def fails(x: torch.Tensor) -> torch.Tensor:
        if broken.is_set():
            raise RuntimeError("out of memory")
        return forward(x)

    model.forward = fails  # type: ignore[method-assign, assignment]  # as a network may

    async def scenario() -> None:
        async with running(make(tmp_path, model)) as client:
            first = await predict(client, pixels(1)[0])
            broken.set()
            errors = await asyncio.gather(*(predict(client, image) for image in pixels(5)))
            broken.clear()
            last = await predict(client, pixels(1)[0])
            assert (await client.get("/v2/health/live")).status_code == 200
        assert [first.status_code, last.status_code] == [200, 200]
        assert {response.status_code for response in errors} == {500}
        assert "the batch failed (RuntimeError)" in errors[0].json()["error"]
        assert last.json()["predictions"][0]["step"] == 1

    run(scenario())


def test_an_error_in_the_update_leaves_the_answer_and_the_model(tmp_path: Path) -> None:
    model = adapter(guard=None)
    application = make(tmp_path, model)

    def fails() -> None:
        raise MemoryError

    async def scenario() -> None:
        before = model.state_dict()
        step, model.step = model.step, fails  # type: ignore[method-assign]
        async with running(application) as client:
            assert (await predict(client, pixels(1)[0])).status_code == 200
            await until(lambda: bool(service_of(application).live.batches))
            assert service_of(application).live.batches[-1][1]["outcome"] == "failed"
            textbook.assert_bits(model.state_dict(), before)
            model.step = step  # type: ignore[method-assign]
            assert (await predict(client, pixels(1)[0])).status_code == 200

    run(scenario())


@pytest.mark.parametrize("function", ["take", "process"])
def test_an_error_anywhere_in_the_loop_does_not_end_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, function: str
) -> None:
    application = make(tmp_path)
    owner: Any = service_of(application).queue if function == "take" else service_of(application).writer
    original, calls = getattr(owner, function), []

    def fails_once(*arguments: Any) -> Any:
        calls.append(arguments)
        if len(calls) == 1:
            raise OSError("no such thing")
        return original(*arguments)

    monkeypatch.setattr(owner, function, fails_once)

    async def scenario() -> None:
        async with running(application) as client:
            statuses = [(await predict(client, image)).status_code for image in pixels(3)]
        assert statuses == ([200] * 3 if function == "take" else [500, 200, 200])

    run(scenario())


def test_health_is_red_while_the_loop_does_not_tick(tmp_path: Path) -> None:
    application = make(tmp_path, stuck=60.0)
    gate = Gate(application)
    writer = service_of(application).writer
    now = 0.0
    writer.clock = lambda: now

    async def scenario() -> None:
        nonlocal now
        async with running(application) as client:
            sent = asyncio.create_task(predict(client, pixels(1)[0]))
            await gate.wait()
            now += 59
            assert (await client.get("/v2/health/live")).status_code == 200
            now += 5
            for route in ("live", "ready"):
                response = await client.get(f"/v2/health/{route}")
                assert response.status_code == 503
                assert "the writer shows no sign of life" in response.json()["error"]
            gate.release(9)
            assert (await sent).status_code == 200
            await until(lambda: writer.silence() == 0)
            assert (await client.get("/v2/health/ready")).status_code == 200

    writer.ticked = 0.0
    run(scenario())


def test_a_request_that_waits_too_long_gets_504_and_leaves_the_queue(tmp_path: Path) -> None:
    application = make(tmp_path)
    gate = Gate(application)
    service = service_of(application)

    async def scenario() -> None:
        async with running(application) as client:
            first = asyncio.create_task(predict(client, pixels(1)[0]))
            await gate.wait()
            service.settings = dataclasses.replace(service.settings, timeout=0.05)
            with pytest.raises(Refusal, match="too long for its batch") as late:
                await service.predict([pixels(1)[0]], adapt=True, gone=asyncio.Event().wait)
            assert (late.value.status, late.value.retry_after) == (504, 1)
            assert len(service.queue) == 0
            gate.release(9)
            assert (await first).status_code == 200  # its batch had begun

    run(scenario())


def test_images_that_take_too_long_to_decode_get_504(tmp_path: Path) -> None:
    service = service_of(make(tmp_path, timeout=0.05))
    finish = threading.Event()

    async def scenario() -> None:
        with pytest.raises(Refusal, match="too long to be decoded") as refused:
            await service.decode(lambda: finish.wait(LONG))
        assert (refused.value.status, refused.value.retry_after) == (504, 1)

    try:
        run(scenario())
    finally:
        finish.set()


@pytest.mark.parametrize("status", ["429", "503"])
def test_a_full_queue_refuses(tmp_path: Path, status: str) -> None:
    application = make(tmp_path, queue=2, when_full=status)
    gate = Gate(application)

    async def scenario() -> None:
        async with running(application) as client:
            tasks = [asyncio.create_task(predict(client, pixels(1)[0]))]
            await gate.wait()
            tasks += [asyncio.create_task(predict(client, image)) for image in pixels(2)]
            await until(lambda: len(service_of(application).queue) == 2)
            refused = await predict(client, pixels(1)[0])
            assert refused.status_code == int(status)
            assert refused.headers["retry-after"] == "1"
            gate.release(9)
            assert [(await task).status_code for task in tasks] == [200] * 3
            text = (await client.get("/metrics")).text
            assert f'cretta_requests_total{{code="{status}"}} 1.0' in text

    run(scenario())


def test_clients_that_vanish_are_dropped_before_their_batch(tmp_path: Path) -> None:
    application = make(tmp_path)
    gate = Gate(application)
    service = service_of(application)

    async def vanishing(left: asyncio.Event) -> list[dict[str, Any]]:
        """Send a request, wait, and close the connection; return what was sent to nobody."""
        sent: list[dict[str, Any]] = []
        body = png(pixels(1)[0])
        messages = [{"type": "http.request", "body": body, "more_body": False}]

        async def receive() -> dict[str, Any]:
            if messages:
                return messages.pop()
            await left.wait()
            return {"type": "http.disconnect"}

        async def send(message: Any) -> None:
            sent.append(message)

        scope = {
            "type": "http",
            "method": "POST",
            "path": "/predict",
            "raw_path": b"/predict",
            "query_string": b"",
            "root_path": "",
            "scheme": "http",
            "http_version": "1.1",
            "server": ("127.0.0.1", 80),
            "client": ("127.0.0.1", 9),
            "headers": [(b"host", b"localhost"), (b"content-type", b"image/png")],
        }
        await application(scope, receive, send)
        return sent

    async def scenario() -> None:
        async with running(application) as client:
            first = asyncio.create_task(predict(client, pixels(1)[0]))
            await gate.wait()
            left = asyncio.Event()
            gone = [asyncio.create_task(vanishing(left)) for _ in range(3)]
            await until(lambda: len(service.queue) == 3)
            stays = asyncio.create_task(predict(client, pixels(1)[0]))
            await until(lambda: len(service.queue) == 4)
            left.set()
            for sent in await asyncio.gather(*gone):
                assert sent[0]["status"] == 499
                assert json.loads(sent[1]["body"]) == {"error": "the client has gone."}
            assert len(service.queue) == 1
            gate.release(9)
            assert (await first).json()["predictions"][0]["batch"] == 0
            assert (await stays).json()["predictions"][0]["batch"] == 1
            await until(lambda: len(service.live.batches) == 2)
            assert [batch["images"] for _, batch in service.live.batches] == [1, 1]
            assert "cretta_dropped_images_total 3.0" in (await client.get("/metrics")).text

    run(scenario())


def test_at_the_end_all_that_was_accepted_is_answered_and_then_saved(tmp_path: Path) -> None:
    application = make(tmp_path, batch_size=2)
    gate = Gate(application)
    service = service_of(application)

    async def scenario() -> None:
        tasks: list[asyncio.Task[Any]] = []
        async with running(application) as client:
            for index, image in enumerate(pixels(7)):
                tasks.append(asyncio.create_task(predict(client, image)))
                await until(lambda index=index: service.queue.sequence == index + 1)  # type: ignore[misc]
            await gate.wait()
            service.withdraw()
            ready = await client.get("/v2/health/ready")
            assert ready.status_code == 503
            assert "shutting down" in ready.json()["error"]
            assert (await client.get("/v2/health/live")).status_code == 200
            service.queue.drain()
            assert (await predict(client, pixels(1)[0])).status_code == 503
            gate.release(99)
        assert [(await task).status_code for task in tasks] == [200] * 7
        (saved,) = service.snapshots.all()
        assert (saved.batch, saved.step) == (service.writer.batch, service.writer.step)
        assert saved.step >= 4

    run(scenario())


def test_a_writer_that_hangs_does_not_hold_up_the_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cretta.serve.service.SNAPSHOT_SECONDS", 0.05)
    application = make(tmp_path, drain=0.05)
    gate = Gate(application)

    async def scenario() -> None:
        async with running(application) as client:
            first = asyncio.create_task(predict(client, pixels(1)[0]))
            await gate.wait()
            second = asyncio.create_task(predict(client, pixels(1)[0]))
            await until(lambda: len(service_of(application).queue) == 1)
            assert not await asyncio.to_thread(service_of(application).stop)
            assert not service_of(application).stop()  # the same answer again
            response = await second
            assert response.status_code == 503
            assert "stopped before it could answer" in response.json()["error"]
            gate.release(9)
            assert (await first).status_code == 200

    run(scenario())


def test_what_still_waits_at_the_end_of_the_drain_is_refused(tmp_path: Path) -> None:
    application = make(tmp_path)
    gate = Gate(application)
    service = service_of(application)

    async def scenario() -> None:
        async with running(application) as client:
            first = asyncio.create_task(predict(client, pixels(1)[0]))
            await gate.wait()
            second = asyncio.create_task(predict(client, pixels(1)[0]))
            await until(lambda: len(service.queue) == 1)
            service.drain()
            service.give_up()
            refused = await second
            assert refused.status_code == 503
            assert "stopped before it could answer" in refused.json()["error"]
            gate.release(9)
            assert (await first).status_code == 200
        assert service.clean is False  # a request was left without an answer

    run(scenario())


@pytest.mark.parametrize("error", [RuntimeError("no such tensor"), MemoryError()])
def test_an_end_without_its_snapshot_is_not_clean(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    application = make(tmp_path)
    service = service_of(application)

    def fail(*_: Any) -> None:
        raise error

    async def scenario() -> None:
        async with running(application) as client:
            assert (await predict(client, pixels(1)[0])).status_code == 200
            monkeypatch.setattr(service.snapshots, "save", fail)
        assert service.clean is False
        assert service.snapshot_error == (str(error) or "MemoryError")

    run(scenario())


def test_a_batch_that_cannot_be_reported_was_answered(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    application = make(tmp_path, batch_size=2)
    service = service_of(application)

    def fail(*_: Any) -> None:
        raise RuntimeError("no metrics")

    service.writer.after = fail

    async def scenario() -> None:
        async with running(application) as client:
            files = [("images", (f"{index}.png", png(image))) for index, image in enumerate(pixels(5))]
            response = await client.post("/predict", files=files)
        assert response.status_code == 200
        assert [entry["batch"] for entry in response.json()["predictions"]] == [0, 0, 1, 1, 2]

    run(scenario())
    assert caplog.text.count("a batch was not reported") == 3


def test_floats_and_bytes_in_one_batch(tmp_path: Path) -> None:
    from cretta.serve.decode import to_batch

    images = pixels(3)
    floats = [images[0], images[1].astype(np.float32) / np.float32(255), images[2]]
    assert torch.equal(to_batch(floats, torch.device("cpu")), as_batch(images))


def test_pages_that_are_open_at_once_do_not_disturb_each_other(monkeypatch: pytest.MonkeyPatch) -> None:
    class Overwritten(Live):
        """As if a thread of another page, with older images, always assigned last."""

        _pictures = property(lambda _: {}, lambda *_: None)

    monkeypatch.setattr("cretta.serve.live._image", lambda image, answer, labels: {"shown": image})
    live = Overwritten(4)
    for number in (1, 2, 3):
        entry: Any = (number, f"image {number}", Mock(sequence=10 * number))
        live.images.append(entry)
    assert live._encoded(1, 3, ()) == [{"shown": "image 2"}, {"shown": "image 3"}]
