"""Snapshots, rollback and reset: over HTTP, after a restart, with damaged files and a full disk."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
import torch
from torch import nn

import cretta
import textbook
from cretta import BusyError, StateError
from cretta.serve.snapshots import Snapshots
from serving import BEARER, adapter, make, pixels, predict, run, running, service_of, until


def test_a_restart_continues_from_the_last_snapshot(tmp_path: Path) -> None:
    images = pixels(6)

    async def scenario() -> None:
        first = make(tmp_path)
        async with running(first) as client:
            for image in images[:3]:
                await predict(client, image)
        saved = service_of(first).adapter.state_dict()
        second = make(tmp_path)
        async with running(second) as client:
            textbook.assert_bits(service_of(second).adapter.state_dict(), saved)
            answer = (await predict(client, images[3])).json()
            assert (answer["predictions"][0]["batch"], answer["predictions"][0]["step"]) == (3, 3)
            assert answer["run"] != service_of(first).run

    run(scenario())


def test_snapshots_every_n_steps_and_the_last_k_are_stored(tmp_path: Path) -> None:
    async def scenario() -> None:
        application = make(tmp_path, snapshot_every=2, snapshots=3)
        async with running(application) as client:
            for image in pixels(11):
                await predict(client, image)
            await until(lambda: service_of(application).writer.batch == 11)
            names = [item.step for item in service_of(application).snapshots.all()]
            assert names == [10, 8, 6]
        assert [item.step for item in service_of(application).snapshots.all()] == [11, 10, 8]

    run(scenario())


@pytest.mark.parametrize("damage", ["truncated", "changed", "empty"])
def test_a_damaged_snapshot_is_refused_and_the_one_before_is_used(tmp_path: Path, damage: str) -> None:
    async def scenario() -> None:
        application = make(tmp_path, snapshot_every=1)
        async with running(application) as client:
            for image in pixels(3):
                await predict(client, image)
            await until(lambda: service_of(application).writer.batch == 3)
        newest, before, *_ = service_of(application).snapshots.all()
        path = tmp_path / newest.name
        content = bytearray(path.read_bytes())
        content[-5] ^= 1
        path.write_bytes({"truncated": bytes(content[:-9]), "changed": bytes(content), "empty": b""}[damage])
        again = make(tmp_path)
        async with running(again) as client:
            assert service_of(again).writer.step == before.step
            state = (await client.get("/state", headers=BEARER)).json()
            assert state["step"] == before.step
            refused = await client.post("/state/rollback", headers=BEARER, json={"snapshot": newest.name})
            assert refused.status_code == 409
            assert "The model is unchanged" in refused.json()["error"]

    run(scenario())


def test_all_snapshots_damaged_is_a_start_from_the_source_model(tmp_path: Path) -> None:
    async def scenario() -> None:
        first = make(tmp_path)
        async with running(first) as client:
            await predict(client, pixels(1)[0])
        for path in tmp_path.glob("snapshot-*"):
            path.write_bytes(b"nothing")
        again = make(tmp_path)
        async with running(again) as client:
            assert service_of(again).writer.step == 0
            assert (await predict(client, pixels(1)[0])).status_code == 200

    run(scenario())


def test_a_full_disk_is_reported_and_serving_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario() -> None:
        application = make(tmp_path, snapshot_every=1)
        async with running(application) as client:
            await predict(client, pixels(1)[0])
            await until(lambda: len(service_of(application).snapshots.all()) == 1)

            def full(descriptor: int) -> None:
                raise OSError(errno.ENOSPC, "No space left on device")

            with monkeypatch.context() as patch:
                patch.setattr(os, "fsync", full)
                for image in pixels(3):
                    assert (await predict(client, image)).status_code == 200
                asked = await client.post("/state/snapshot", headers=BEARER)
                assert asked.status_code == 507
                assert "No space left on device" in asked.json()["error"]
                reset = await client.post("/state/reset", headers=BEARER)
                assert reset.status_code == 507
                assert "the reset is done, but not saved: " in reset.json()["error"]
                assert "the model may be as it was before" in reset.json()["error"]
                assert "No space left on device" in reset.json()["error"]
                state = (await client.get("/state", headers=BEARER)).json()
                assert "No space left on device" in state["snapshot_error"]
                assert 'cretta_snapshots_total{outcome="failed"}' in (await client.get("/metrics")).text
                assert [path.name for path in tmp_path.glob(".snapshot*")] == []
            assert (await client.post("/state/snapshot", headers=BEARER)).json()["snapshot_error"] == ""

    run(scenario())


def test_an_old_snapshot_that_cannot_be_removed_is_logged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    model = cretta.adapt(textbook.small_net(), "tent")
    snapshots = Snapshots(tmp_path, 1)
    first = snapshots.save(model, 0, 0)
    monkeypatch.setattr(Path, "unlink", Mock(side_effect=OSError(errno.EROFS, "Read-only file system")))
    second = snapshots.save(model, 1, 1)
    assert snapshots.all() == [second, first]
    (record,) = [record for record in caplog.records if record.message == "snapshot not removed"]
    assert record.__dict__["facts"]["snapshot"] == first.name


def test_rollback_and_reset(tmp_path: Path) -> None:
    async def scenario() -> None:
        application = make(tmp_path, snapshot_every=0)
        model = service_of(application).adapter
        source = model.state_dict()
        async with running(application) as client:
            nothing = await client.post("/state/rollback", headers=BEARER)
            assert nothing.status_code == 409
            assert "no snapshot to roll back to" in nothing.json()["error"]
            for image in pixels(2):
                await predict(client, image)
            first = (await client.post("/state/snapshot", headers=BEARER)).json()["snapshots"][0]
            good = model.state_dict()
            for image in pixels(2):
                await predict(client, image)
            second = (await client.post("/state/snapshot", headers=BEARER)).json()["snapshots"][0]
            assert second != first
            assert not torch.equal(model.state_dict()["parameters.0"], good["parameters.0"])
            back = await client.post("/state/rollback", headers=BEARER, json={"snapshot": first})
            assert back.status_code == 200
            textbook.assert_bits(model.state_dict(), good)
            assert back.json()["snapshots"][0] not in (first, second)  # a restart does not begin with the second
            missing = await client.post("/state/rollback", headers=BEARER, json={"snapshot": "../../etc/passwd"})
            assert missing.status_code == 409
            assert (await client.post("/state/reset", headers=BEARER)).status_code == 200
            textbook.assert_bits(model.state_dict(), source)
            answer = (await predict(client, pixels(1)[0])).json()["predictions"][0]
            assert (answer["batch"], answer["step"]) == (4, 4)  # neither number goes back
        again = make(tmp_path)
        async with running(again) as client:
            events = [event["kind"] for _, event in service_of(again).live.events]
            assert events == ["restored"]

    run(scenario())


def test_two_processes_do_not_share_a_folder(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running(make(tmp_path)):
            with pytest.raises(BusyError, match="another process is working in"):
                service_of(make(tmp_path)).start()

    run(scenario())


def test_snapshots_of_another_method_are_an_error(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running(make(tmp_path)) as client:
            await predict(client, pixels(1)[0])

    run(scenario())
    with pytest.raises(StateError, match=r'method was "cretta" and is "tent".*choose another folder'):
        service_of(make(tmp_path, adapter("tent"))).start()
    # Their states have other entries.
    with pytest.raises(StateError, match=r'calibrate was null and is "auto".*choose another folder'):
        service_of(make(tmp_path, adapter(calibrate="auto"))).start()
    with pytest.raises(StateError, match=r"skip was .* and is .*choose another folder"):
        service_of(make(tmp_path, adapter(skip="bn1"))).start()


def test_a_network_with_a_state_that_is_no_tensor_is_served(tmp_path: Path) -> None:
    class Versioned(nn.Module):
        """Like modules of Transformer Engine, which store more than tensors."""

        def __init__(self) -> None:
            super().__init__()
            self.net = textbook.small_net()

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            logits: torch.Tensor = self.net(x)
            return logits

        def get_extra_state(self) -> dict[str, int]:
            return {"version": 1}

        def set_extra_state(self, state: object) -> None:
            pass

    model = cretta.adapt(Versioned(), "tent", predict="before", statistics="running")

    async def scenario() -> None:
        async with running(make(tmp_path, model, size=(textbook.SIDE, textbook.SIDE))) as client:
            assert (await predict(client, pixels(1)[0])).status_code == 200

    run(scenario())


def test_files_of_a_killed_process_are_removed(tmp_path: Path) -> None:
    leftover = tmp_path / f".snapshot-1.safetensors.{'0' * 32}"
    leftover.write_bytes(b"half")

    async def scenario() -> None:
        async with running(make(tmp_path)):
            assert not leftover.exists()

    run(scenario())


def test_the_token_is_made_once_for_its_owner_only(tmp_path: Path) -> None:
    from cretta.serve.application import stored_token

    token: Any = stored_token(tmp_path / "new")
    assert len(token) >= 32
    assert stored_token(tmp_path / "new") == token
    assert (tmp_path / "new" / "token").stat().st_mode & 0o777 == 0o600
