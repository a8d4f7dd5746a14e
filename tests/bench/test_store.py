from __future__ import annotations

import dataclasses
import itertools
import os
import signal
import subprocess
import sys
from pathlib import Path

import pyarrow.parquet as pq
import pytest
import torch

import forks
from cretta.accelerate import missing_kernels, recorded_choices
from cretta.bench import BatchRow, Domain, Result, Run, Store
from cretta.bench.result import batch_row
from cretta.bench.store import provenance
from cretta.errors import StateError


def row(batch: int = 0, **changes: object) -> BatchRow:
    logits = torch.randn(20, 4, generator=torch.Generator().manual_seed(batch))
    made = batch_row(batch, "fog/5", logits, torch.arange(20) % 4, None, 0.25)
    return dataclasses.replace(made, **changes)  # type: ignore[arg-type]


def result(key: str = "k" * 24) -> Result:
    rows = (row(0), row(1, source_energy=-3.5, weight=0.5, loss=0.7, adapted=True, reason=""))
    run = Run(
        data="embedded", domains=Domain.parse_all("fog/5"), model="tiny:network", method="tent", options=(("lr", 0.1),)
    )
    return Result(key, run, rows, {"gflops": 1.5}, {"versions": {"a": "1"}})


def test_what_is_put_is_got(tmp_path: Path) -> None:
    store = Store(tmp_path / "results")
    store.put(result())
    assert result().key in store
    assert store.get(result().key) == result()
    assert list(store) == [result()]
    assert store.keys() == [result().key]
    assert store.get("other") is None


def test_the_file_is_plain_parquet(tmp_path: Path) -> None:
    store = Store(tmp_path)
    store.put(result())
    table = pq.read_table(store.path(result().key))
    assert table.num_rows == 2
    assert table.column("right").to_pylist() == [each.right for each in result().rows]
    assert table.column("bin_images").to_pylist() == [list(each.bin_images) for each in result().rows]


@pytest.mark.parametrize("damage", ["cut", "emptied", "text", "renamed"])
def test_a_damaged_file_counts_as_missing(tmp_path: Path, damage: str) -> None:
    store = Store(tmp_path)
    store.put(result())
    path = store.path(result().key)
    content = path.read_bytes()
    key = result().key
    if damage == "cut":
        path.write_bytes(content[: len(content) // 2])
    elif damage == "emptied":
        path.write_bytes(b"")
    elif damage == "text":
        path.write_text("hello")
    else:
        key = "x" * 24
        path.rename(store.path(key))
    assert store.get(key) is None
    assert store.damaged == {store.path(key)}
    store.put(dataclasses.replace(result(), key=key))
    assert store.get(key) is not None


def test_every_flipped_byte_is_noticed_or_harmless(tmp_path: Path) -> None:
    store = Store(tmp_path)
    store.put(result())
    path = store.path(result().key)
    content = path.read_bytes()
    noticed = 0
    for position in range(0, len(content), 37):
        damaged = bytearray(content)
        damaged[position] ^= 0x10
        path.write_bytes(damaged)
        read = store.get(result().key)
        assert read is None or read == result()
        noticed += read is None
    assert noticed > 50


def test_a_write_that_fails_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = Store(tmp_path)

    def full(*_: object) -> None:
        raise OSError("no space left")

    monkeypatch.setattr(os, "replace", full)
    with pytest.raises(StateError, match="no space left"):
        store.put(result())
    assert not list(tmp_path.iterdir())


def test_a_result_of_another_format_is_left_where_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = Store(tmp_path)
    monkeypatch.setattr("cretta.bench.store.FORMAT", 3)
    store.put(result())
    monkeypatch.undo()
    with pytest.raises(StateError, match="format 3"):
        store.get(result().key)
    assert result().key in store


def test_a_file_that_may_not_be_read_is_not_called_damaged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = Store(tmp_path)
    store.put(result())

    def refused(path: Path) -> bytes:
        raise PermissionError("not yours")

    monkeypatch.setattr(Path, "read_bytes", refused)
    with pytest.raises(StateError, match="not yours"):
        store.get(result().key)
    monkeypatch.undo()
    assert store.get(result().key) == result()


def test_what_a_killed_process_left_half_written_goes_when_the_run_is_kept(tmp_path: Path) -> None:
    store = Store(tmp_path)
    (tmp_path / f".{result().key}.parquet.0123").write_bytes(b"half")
    store.put(result())
    assert [path.name for path in tmp_path.iterdir()] == [f"{result().key}.parquet"]


def test_a_file_is_no_folder(tmp_path: Path) -> None:
    (tmp_path / "results").write_text("")
    with pytest.raises(StateError, match="is a file"):
        Store(tmp_path / "results")


def test_a_folder_of_other_files_is_not_a_store(tmp_path: Path) -> None:
    (tmp_path / ".hidden").write_text("")
    (tmp_path / "models").mkdir()  # of `cretta reproduce`, before the first result
    Store(tmp_path)
    (tmp_path / "predictions.parquet").write_text("of the user")
    with pytest.raises(StateError, match=r"^store='.*': expected a folder of results, .* holds predictions\.parquet"):
        Store(tmp_path)
    for own in (f"{'0' * 24}.lock", "paper-smoke"):
        (tmp_path / own).mkdir()
        assert list(Store(tmp_path)) == []
        (tmp_path / own).rmdir()
    assert (tmp_path / "predictions.parquet").read_text() == "of the user"


@pytest.mark.process
def test_a_claim_is_for_one_and_ends_with_its_process(tmp_path: Path) -> None:
    store = Store(tmp_path)
    with store.claim("k" * 24) as ours, Store(tmp_path).claim("k" * 24) as theirs, store.claim("o" * 24) as other:
        assert (ours, theirs, other) == (True, False, True)
    assert not list(tmp_path.iterdir())
    holder = (
        "import signal\nfrom cretta.bench import Store\n"
        f"with Store({str(tmp_path)!r}).claim('k' * 24) as ours:\n    print(ours, flush=True)\n    signal.pause()\n"
    )
    with forks.Process([sys.executable, "-c", holder], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline().strip() == "True"
        with store.claim("k" * 24) as ours:
            assert not ours
        process.kill()
        assert process.wait() == -signal.SIGKILL
    with store.claim("k" * 24) as ours:
        assert ours


def test_provenance_says_what_ran_where() -> None:
    record = provenance({"model": "a"}, torch.device("cpu"))
    assert record["versions"]["torch"] == torch.__version__.split("+")[0] or record["versions"]["torch"]
    assert record["machine"]["threads"] == torch.get_num_threads()
    assert record["machine"]["kernels"] == {
        "setting": os.environ["CRETTA_KERNELS"],
        "unused": missing_kernels(),
        "choices": recorded_choices(),
    }
    assert record["materials"] == {"model": "a"}


def test_rows_add_up_to_the_measures_of_the_whole() -> None:
    generator = torch.Generator().manual_seed(1)
    logits, labels = torch.randn(90, 5, generator=generator) * 3, torch.randint(5, (90,), generator=generator)
    cut = (0, 20, 60, 90)
    rows = [
        batch_row(number, "fog/5", logits[a:b], labels[a:b], None, 0.5)
        for number, (a, b) in enumerate(itertools.pairwise(cut))
    ]
    parts = dataclasses.replace(result(), rows=tuple(rows))
    whole = dataclasses.replace(result(), rows=(batch_row(0, "fog/5", logits, labels, None, 1.5),))
    measured = parts.scores
    for name in ("accuracy", "calibration_error", "negative_log_likelihood", "brier_score"):
        assert getattr(measured, name) == pytest.approx(getattr(whole.scores, name), rel=1e-12)
    assert measured.bins.mean_confidence == pytest.approx(whole.scores.bins.mean_confidence, rel=1e-12)
    assert (measured.images, parts.seconds) == (whole.scores.images, whole.seconds) == (90, 1.5)

    # The same, written out.
    probabilities = logits.double().softmax(1)
    confidence, predicted = probabilities.max(1)
    right = (predicted == labels).double()
    error = 0.0
    for low in range(10):
        inside = (confidence > low / 10) & (confidence <= (low + 1) / 10)
        if inside.any():
            error += float(inside.double().mean() * (right[inside].mean() - confidence[inside].mean()).abs())
    assert measured.calibration_error == pytest.approx(error)
    assert measured.accuracy == pytest.approx(float(right.mean()))
    assert measured.negative_log_likelihood == pytest.approx(
        float(torch.nn.functional.cross_entropy(logits.double(), labels))
    )
    truth = torch.eye(5, dtype=torch.float64)[labels]
    assert measured.brier_score == pytest.approx(float((probabilities - truth).square().sum(1).mean()))
    assert parts.energy == pytest.approx(-float(logits.double().logsumexp(1).mean()))
