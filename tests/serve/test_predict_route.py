"""POST /predict: what it takes, what it answers, and that answers are the library's."""

from __future__ import annotations

import asyncio
from pathlib import Path

import numpy as np
import pytest
import torch

import textbook
from cretta.data.dataset import as_batch
from cretta.functional import energy
from serving import adapter, make, npy, pixels, png, predict, run, running


def test_one_image_is_answered_as_the_library_does(tmp_path: Path) -> None:
    async def scenario() -> None:
        (image,) = pixels(1)
        async with running(make(tmp_path)) as client:
            response = await predict(client, image, probabilities=True)
        assert response.status_code == 200
        body = response.json()
        (entry,) = body["predictions"]
        logits = adapter()(as_batch(pixels(1)))
        index = int(logits.argmax())
        assert entry["class"] == index
        assert entry["label"] == f"class {index}"
        assert entry["probabilities"] == logits.softmax(-1)[0].tolist()
        assert entry["probability"] == max(entry["probabilities"])
        assert entry["energy"] == pytest.approx(float(energy(logits)[0]))
        assert (entry["sequence"], entry["batch"], entry["step"]) == (0, 0, 0)
        assert body["model"] == "cretta"
        assert len(body["run"]) == 8

    run(scenario())


def test_all_kinds_of_files_give_the_same_pixels(tmp_path: Path) -> None:
    async def scenario() -> None:
        image, other = pixels(2)
        floats = image.astype(np.float32) / 255
        async with running(make(tmp_path, adapter("source"))) as client:
            files = [("images", ("a.png", png(image))), ("images", ("b.png", png(other)))]
            form = await client.post("/predict?probabilities=1", files=files)
            kinds = [("image/png", png(image)), ("application/x-npy", npy(image)), ("application/x-npy", npy(floats))]
            kinds += [("application/octet-stream", npy(np.asfortranarray(image)[None]))]
            single = [
                await client.post("/predict?probabilities=1", content=content, headers={"content-type": kind})
                for kind, content in kinds
            ]
            jpeg = await client.post("/predict", content=png(image, "JPEG"), headers={"content-type": "image/jpeg"})
        expected = adapter("source").predict(as_batch(np.stack([image, other]))).softmax(-1)
        rows = [entry["probabilities"] for entry in form.json()["predictions"]]
        assert torch.allclose(torch.tensor(rows), expected)
        for response in single:
            assert response.json()["predictions"][0]["probabilities"] == pytest.approx(rows[0])
        assert jpeg.status_code == 200

    run(scenario())


def test_images_are_scaled_to_the_size_of_the_model(tmp_path: Path) -> None:
    async def scenario() -> None:
        large = np.kron(pixels(1)[0], np.ones((4, 4, 1), np.uint8))
        async with running(make(tmp_path, adapter("source"))) as client:
            scaled = await predict(client, large)
            refused = await client.post("/predict", content=npy(large), headers={"content-type": "application/x-npy"})
        assert scaled.status_code == 200
        assert refused.status_code == 422
        assert "expected images of shape (8, 8, 3), got an array of shape (1, 32, 32, 3)" in refused.json()["error"]

    run(scenario())


def test_without_adapt_the_model_does_not_learn(tmp_path: Path) -> None:
    async def scenario() -> None:
        application = make(tmp_path)
        images = pixels(6)
        before = {name: value.clone() for name, value in application.state.service.adapter.state_dict().items()}
        async with running(application) as client:
            for image in images:
                answer = (await predict(client, image, adapt=False)).json()["predictions"][0]
                assert answer["step"] == 0
            textbook.assert_bits(application.state.service.adapter.state_dict(), before)
            await predict(client, images[0])
            learned = application.state.service.adapter.state_dict()
        assert not torch.equal(learned["parameters.0"], before["parameters.0"])

    run(scenario())


def test_requests_of_both_kinds_in_one_batch_are_answered_apart(tmp_path: Path) -> None:
    from serving import Gate

    async def scenario() -> None:
        application = make(tmp_path)
        gate = Gate(application)
        images = pixels(5)
        async with running(application) as client:
            first = asyncio.create_task(predict(client, images[0]))
            await gate.wait()
            others = []
            for index, image in enumerate(images[1:]):  # one after the other, so that their order is known
                others.append(asyncio.create_task(predict(client, image, adapt=index % 2 == 0, probabilities=True)))
                while len(application.state.service.queue) <= index:
                    await asyncio.sleep(0)
            gate.release(10)
            await first
            answers = [(await task).json()["predictions"][0] for task in others]
        assert [answer["batch"] for answer in answers] == [1, 2, 1, 2]
        assert [answer["step"] for answer in answers] == [1, 2, 1, 2]
        model = adapter()
        model(as_batch(images[:1]))
        learned = model(as_batch(images[[1, 3]])).softmax(-1)
        frozen = model.predict(as_batch(images[[2, 4]])).softmax(-1)
        expected = [learned[0], frozen[0], learned[1], frozen[1]]
        assert [answer["probabilities"] for answer in answers] == [row.tolist() for row in expected]

    run(scenario())
