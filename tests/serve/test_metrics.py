"""Metrics: what Prometheus reads after some batches."""

from __future__ import annotations

from dataclasses import replace
from itertools import islice
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from cretta.monitor.guard import Guard, GuardState
from cretta.serve.observe import Observation
from serving import make, pixels, predict, run, running, service_of, until


def test_metrics_count_what_was_done_and_estimates_wait_for_enough_images(tmp_path: Path) -> None:
    application = make(tmp_path, monitor_every=1, monitor_after=3)
    service = service_of(application)

    async def scenario() -> None:
        async with running(application) as client:

            async def after(batches: int) -> dict[str, float]:
                await until(lambda: len(service.live.batches) == batches)
                families = text_string_to_metric_families((await client.get("/metrics")).text)
                samples = [sample for family in families for sample in family.samples]
                return {" ".join([sample.name, *sample.labels.values()]): sample.value for sample in samples}

            for image in pixels(2):
                await predict(client, image)
            before = await after(2)
            assert service.live.batches[-1][1]["accuracy"] == {}
            assert service.live.batches[-1][1]["drift"] is None
            await predict(client, pixels(1)[0])
            await predict(client, pixels(1)[0], adapt=False)
            last = await after(4)
        estimate = "cretta_estimated_accuracy_ratio cot"
        assert estimate not in before
        assert 0 <= last[estimate] <= 1
        assert 0 <= last["cretta_drift_score"] <= 1
        assert 0 < last["cretta_confidence_ratio"] <= 1
        assert last["cretta_energy"] == service.live.batches[-1][1]["energy"]
        counts = {"requests_total 200": 4, "images_total": 4, "batches_total": 4, "steps_total adapted": 3}
        counts |= {"steps_total predicted": 1, "queue_seconds_count": 4, "predict_seconds_count": 4, "model_step": 3}
        assert {name: last[f"cretta_{name}"] for name in counts} == counts

    run(scenario())


@pytest.mark.parametrize(
    ("guard", "actions"),
    [
        ("rollback", ["rollback", "reset", "fallback"]),
        ("reset", ["reset", "fallback", "fallback"]),
        ("fallback", ["fallback", "fallback", "fallback"]),
        ("warn", []),
    ],
)
def test_the_label_of_a_guard_event_follows_from_its_message(guard: str, actions: list[str]) -> None:
    state = GuardState(Guard(action=guard))
    state.healthy = {}
    messages = [remedy.message for remedy in islice(state.remedies({}, {}), 3)]
    seen = Observation(0, 0, 1, "adapted", 0.0, 0.0, 0.0, 0.0, ())
    assert [replace(seen, guard=f"one class; {message}").guard_action for message in messages] == actions
    assert replace(seen, guard="one class; nothing done").guard_action == "warn"
