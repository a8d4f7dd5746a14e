"""Images that would make the model worse: the guard acts, and clean images are predicted as before."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from numpy.typing import NDArray

from cretta.data import embedded
from cretta.serve import app
from cretta.serve.shipped import shipped_adapter
from processes import LONG
from serving import TOKEN, npy, run, running, service_of

BATCHES, SIZE, CLEAN = 50, 16, 500
TEST = embedded("test")


def poison(kind: str) -> NDArray[np.uint8]:
    count = BATCHES * SIZE
    if kind == "constant":
        return np.full((count, 32, 32, 3), 128, np.uint8)
    if kind == "noise":
        return np.random.default_rng(0).integers(0, 256, (count, 32, 32, 3), dtype=np.uint8)
    cats = TEST.images[CLEAN:][TEST.labels[CLEAN:] == TEST.classes.index("cat")]
    return np.asarray(cats[np.arange(count) % len(cats)])


async def classes(client: httpx.AsyncClient, images: NDArray[np.uint8], adapt: str) -> list[int]:
    headers = {"content-type": "application/x-npy"}
    response = await client.post(f"/predict?adapt={adapt}", content=npy(images), headers=headers)
    assert response.status_code == 200
    return [entry["class"] for entry in response.json()["predictions"]]


async def accuracy(client: httpx.AsyncClient) -> float:
    predicted = [
        index
        for first in range(0, CLEAN, 50)
        for index in await classes(client, TEST.images[first : first + 50], "false")
    ]
    return 100 * float(np.mean(np.asarray(predicted) == TEST.labels[:CLEAN]))


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::cretta.CollapseWarning")
@pytest.mark.parametrize("kind", ["constant", "noise", "one class"])
def test_the_model_survives_poison(tmp_path: Path, kind: str) -> None:
    async def scenario() -> None:
        model, labels = shipped_adapter()
        limits: dict[str, Any] = {"wait_ms": 0.0, "rate": 0.0, "timeout": LONG, "drain": LONG}
        application = app(model, folder=tmp_path, token=TOKEN, labels=labels, batch_size=50, **limits)
        async with running(application) as client:
            before = await accuracy(client)
            for images in poison(kind).reshape(BATCHES, SIZE, 32, 32, 3):
                await classes(client, images, "true")
            after = await accuracy(client)
        live = service_of(application).live
        events = [event for _, event in live.events if event["kind"] == "guard"]
        assert before > 85
        assert after >= before - 1, (before, after, events)
        assert events

    run(scenario())
