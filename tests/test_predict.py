from __future__ import annotations

import dataclasses
import errno
import itertools
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
import pytest
import torch
from PIL import Image
from torch import nn

import cretta
import textbook
from cretta.data import ArrayDataset, FileDataset, image_folder
from cretta.errors import BatchError, BusyError, OptionError, StateError
from cretta.predict import Summary, open_images, predict, table
from cretta.predict.advice import batch_advice
from cretta.predict.run import work_folder

AnyAdapter = cretta.Adapter[Any]
COUNT, BATCH = 46, 8
"""The last batch has six."""


def pixels(count: int = COUNT, seed: int = 0) -> Any:
    return np.random.default_rng(seed).integers(0, 256, (count, 8, 8, 3), np.uint8)


def array(count: int = COUNT, labels: bool = False) -> ArrayDataset:
    result = np.arange(count) % textbook.CLASSES if labels else np.full(count, -1)
    names = tuple("abcde") if labels else ()
    return ArrayDataset("noise", pixels(count), result.astype(np.int64), names)


def adapter(method: str = "cretta", **options: Any) -> AnyAdapter:
    buffer = cretta.SourceBuffer(textbook.source_images(20).sigmoid(), augment="none")
    return cretta.adapt(textbook.small_net(), method, buffer=buffer, **{"lr": 1e-2, **options})


def folder(root: Path, count: int = COUNT) -> Path:
    root.mkdir()
    for number, image in enumerate(pixels(count)):
        Image.fromarray(image).save(root / f"{number}.png")
        os.utime(root / f"{number}.png", (0, number))
    return root


def read(path: Path) -> pa.Table:
    return pq.read_table(path)


def rows(path: Path) -> list[dict[str, Any]]:
    result: list[dict[str, Any]] = read(path).to_pylist()
    return result


def listing(root: Path) -> dict[str, bytes]:
    return {str(file.relative_to(root)): file.read_bytes() for file in root.rglob("*") if file.is_file()}


class CrashError(BaseException):
    """The process dies; nobody may catch it."""


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    root = tmp_path_factory.mktemp("undisturbed")
    for ending in table.ENDINGS:
        predict(array(), adapter(), output=root / f"out{ending}", batch_size=BATCH)
    return listing(root)


# What the rows say.


@pytest.mark.parametrize("shuffle", [False, True])
@pytest.mark.parametrize("method", ["cretta", "tent", "bn_adapt", "source"])
def test_rows_are_those_of_a_plain_loop(method: str, shuffle: bool, tmp_path: Path) -> None:
    output, model, again = tmp_path / "out.parquet", adapter(method), adapter(method)
    summary = predict(array(), model, output=output, batch_size=BATCH, shuffle=shuffle)
    order = np.random.default_rng(0).permutation(COUNT) if shuffle else np.arange(COUNT)
    result = rows(output)
    expected: list[dict[str, Any]] = []
    for number, start in enumerate(range(0, COUNT, BATCH)):
        chosen = order[start : start + BATCH]
        x = torch.from_numpy(pixels()[chosen]).permute(0, 3, 1, 2).float() / 255
        logits = again(x)
        p = logits.softmax(-1)
        for place, index in enumerate(chosen):
            expected.append(
                {
                    "path": f"noise#{index}",
                    "batch": number,
                    "prediction": int(logits[place].argmax()),
                    "class": None,
                    "confidence": float(p[place].max()),
                    "energy": float(cretta.energy(logits)[place]),
                    "adapted": method in ("cretta", "tent"),
                    "note": "",
                }
            )
    assert result == expected
    textbook.assert_bits(model.state.snapshot(), again.state.snapshot())
    assert (summary.images, summary.batches, summary.unreadable) == (COUNT, 6, 0)
    assert summary.adapted == (6 if method in ("cretta", "tent") else 0)
    assert summary.mean_confidence == pytest.approx(np.mean([row["confidence"] for row in expected]))
    assert summary.mean_energy == pytest.approx(np.mean([row["energy"] for row in expected]))
    assert sum(summary.predicted.values()) == COUNT
    assert summary.predicted[expected[0]["prediction"], None] == sum(
        row["prediction"] == expected[0]["prediction"] for row in expected
    )
    assert summary.accuracy is summary.calibration_error is None
    assert list(tmp_path.iterdir()) == [output]


def test_csv_says_the_same(tmp_path: Path) -> None:
    for ending in table.ENDINGS:
        predict(array(labels=True), adapter(), output=tmp_path / f"out{ending}", batch_size=BATCH)
    schema = read(tmp_path / "out.parquet").schema
    options = pa.csv.ConvertOptions(column_types=schema, strings_can_be_null=True, quoted_strings_can_be_null=False)
    again = pa.csv.read_csv(tmp_path / "out.csv", convert_options=options)
    assert again.to_pylist() == rows(tmp_path / "out.parquet")
    facts = json.loads(schema.metadata[b"cretta"])
    assert facts["method"] == "cretta"
    assert facts["options"]["lr"] == 1e-2
    assert facts["batch_size"] == BATCH


def test_labels_give_accuracy_and_calibration(tmp_path: Path) -> None:
    output, dataset = tmp_path / "out.parquet", array(labels=True)
    summary = predict(dataset, adapter(), output=output, batch_size=BATCH)
    again, logits = adapter(), []
    for start in range(0, COUNT, BATCH):
        x = torch.from_numpy(pixels()[start : start + BATCH]).permute(0, 3, 1, 2).float() / 255
        logits.append(again(x))
    scores, labels = torch.cat(logits), torch.from_numpy(dataset.labels)
    assert summary.accuracy == cretta.metrics.BatchScores.of(scores, labels).accuracy
    assert summary.calibration_error == pytest.approx(
        cretta.metrics.calibration_error(scores.softmax(-1), labels), abs=1e-9
    )
    for row, label in zip(rows(output), dataset.labels.tolist(), strict=True):
        assert row["label"] == label
        assert row["correct"] == (row["prediction"] == label)
        assert row["class"] == "abcde"[row["prediction"]]


def test_labels_that_are_not_the_models(tmp_path: Path) -> None:
    """Four folders, and a model of five classes: nobody said that they are classes."""
    root = tmp_path / "photos"
    for number, image in enumerate(pixels(12)):
        (root / f"{number % 4}").mkdir(parents=True, exist_ok=True)
        Image.fromarray(image).save(root / f"{number % 4}" / f"{number}.png")
    dataset, output = image_folder(root), tmp_path / "out.parquet"
    summary = predict(dataset, adapter(), output=output, source=root, batch_size=6)
    assert summary.accuracy is None
    assert "label" not in read(output).column_names
    assert rows(output)[0]["path"] == "0/0.png"
    summary = predict(dataset, adapter(), output=output, source=root, batch_size=6, labeled=True, overwrite=True)
    assert summary.accuracy is not None
    assert rows(output)[0]["class"] is None
    summary = predict(
        dataset, adapter(), output=output, batch_size=6, labeled=True, classes=tuple("vwxyz"), overwrite=True
    )
    assert rows(output)[0]["class"] in tuple("vwxyz")
    # Numbers in a file are labels, also if not every class is there.
    few = dataclasses.replace(array(12), labels=np.arange(12) % 3, classes=("0", "1", "2"))
    assert predict(few, adapter(), output=output, batch_size=6, overwrite=True).accuracy is not None
    assert predict(few, adapter(), output=output, batch_size=6, overwrite=True, labeled=False).accuracy is None
    before = listing(tmp_path)
    many = dataclasses.replace(few, labels=np.arange(12), classes=tuple("abcdefghijkl"))
    assert predict(many, adapter(), output=tmp_path / "many.csv", batch_size=6).accuracy is None
    (tmp_path / "many.csv").unlink()
    with pytest.raises(OptionError, match="has 12 classes and the model 5"):
        predict(many, adapter(), output=output, batch_size=6, overwrite=True, labeled=True)
    with pytest.raises(OptionError, match="has 5 classes, and 2 are named; name each"):
        predict(few, adapter(), output=output, batch_size=6, overwrite=True, classes=("a", "b"))
    with pytest.raises(OptionError, match="has no labels"):
        predict(array(), adapter(), output=output, overwrite=True, labeled=True)
    assert listing(tmp_path) == before


def test_batches_that_are_left_out_say_why(tmp_path: Path) -> None:
    output = tmp_path / "out.parquet"
    summary = predict(array(), adapter("sar", entropy_margin=1e-6), output=output, batch_size=BATCH)
    assert {(row["adapted"], row["note"]) for row in rows(output)} == {(False, "no sample is reliable")}
    assert summary.notes == {"no sample is reliable": 6}
    assert summary.adapted == 0
    watchful = cretta.Guard(action="reset", classes=1.0, drift=1e-9)
    with pytest.warns(cretta.CollapseWarning):
        summary = predict(array(), adapter(guard=watchful, lr=0.5), output=output, batch_size=BATCH, overwrite=True)
    assert any("reset to the source model" in row["note"] for row in rows(output))
    assert summary.adapted + sum(summary.notes.values()) == 6
    assert summary.adapted < 6


def test_the_state_at_the_end(tmp_path: Path) -> None:
    output, state = tmp_path / "out.parquet", tmp_path / "state.safetensors"
    model = adapter()
    predict(array(), model, output=output, batch_size=BATCH, state=state)
    again, plain = adapter(), adapter()
    again.restore(state)
    textbook.assert_bits(again.state.snapshot(), model.state.snapshot())
    for start in range(0, COUNT, BATCH):
        logits = plain(torch.from_numpy(pixels()[start : start + BATCH]).permute(0, 3, 1, 2).float() / 255)
    textbook.assert_bits(plain.state.snapshot(), model.state.snapshot())
    assert rows(output)[-1]["prediction"] == int(logits[-1].argmax())
    # The next folder continues from there.
    predict(array(), again, output=tmp_path / "next.parquet", batch_size=BATCH)
    assert read(tmp_path / "next.parquet") != read(output)


# Killed and continued.


@pytest.mark.parametrize(("ending", "late"), [(".csv", False), (".parquet", True)])
@pytest.mark.slow
def test_a_crash_at_any_write_changes_nothing(
    ending: str, late: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before, or just after, the n-th time that a file takes its name, for every n, two crashes in a row."""
    output, replace, left = tmp_path / f"out{ending}", os.replace, [0]

    def dying(here: Any, there: Any) -> None:
        left[0] -= 1
        if left[0] == 0 and not late:
            raise CrashError
        replace(here, there)
        if left[0] == 0:
            raise CrashError

    def attempt(writes: int) -> bool:
        left[0] = writes
        try:
            predict(array(20), adapter(), output=output, batch_size=BATCH, save_every=0, overwrite=True)
        except CrashError:
            return False
        return True

    predict(array(20), adapter(), output=output, batch_size=BATCH)
    undisturbed, died = output.read_bytes(), 0
    output.unlink()
    monkeypatch.setattr(os, "replace", dying)
    for writes in range(1, 40):
        if attempt(writes):
            break
        attempt(3)
        assert attempt(0)
        assert listing(tmp_path) == {output.name: undisturbed}, writes
        output.unlink()
        died += 1
    assert died == 1 + 3 * 2 + 1  # settings, a part and a state a batch, the output


@pytest.mark.parametrize("method", ["tent", "sar", "eata", "tea", "aea", "shot", "pl", "source", "bn_adapt"])
def test_every_method_is_continued(method: str, tmp_path: Path) -> None:
    options: dict[str, Any] = {"statistics": "moving", "guard": "rollback"} if method == "tent" else {}
    whole, halved = tmp_path / "whole.parquet", tmp_path / "halved.parquet"
    predict(array(), adapter(method, **options), output=whole, batch_size=BATCH, shuffle=True)
    stop_after(3, halved, method, **options)
    summary = predict(array(), adapter(method, **options), output=halved, batch_size=BATCH, shuffle=True)
    assert halved.read_bytes() == whole.read_bytes()
    assert (summary.images, summary.resumed) == (COUNT, 3 * BATCH)


def stop_after(batches: int, output: Path, method: str = "cretta", dataset: Any = None, **options: Any) -> None:
    keywords = {name: options.pop(name) for name in ("source", "on_error") if name in options}

    def hear(images: int) -> None:
        if images >= batches * BATCH:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        predict(
            array() if dataset is None else dataset,
            adapter(method, **options),
            output=output,
            batch_size=BATCH,
            shuffle=dataset is None,
            progress=hear,
            **keywords,
        )
    assert not output.exists()
    assert output.with_name(f"{output.name}.work").is_dir()


def test_other_settings_are_refused_with_the_differences(tmp_path: Path) -> None:
    output = tmp_path / "out.csv"
    stop_after(3, output)
    before = listing(tmp_path)
    other = cretta.SourceBuffer(textbook.source_images(21).sigmoid(), augment="none")
    cases: list[tuple[str, Callable[[], object]]] = [
        ("lr was 0.01 and is 0.02", lambda: again(adapter(lr=0.02))),
        ('method was "cretta" and is "tent"', lambda: again(adapter("tent"))),
        ("batch_size was 8 and is 9", lambda: again(adapter(), batch_size=9)),
        ("weights was", lambda: again(cretta.adapt(textbook.small_net(1), "cretta", buffer=adapter().buffer, lr=1e-2))),
        ("buffer was", lambda: again(cretta.adapt(textbook.small_net(), "cretta", buffer=other, lr=1e-2))),
        ("shuffle was true and is false", lambda: again(adapter(), shuffle=False)),
        ("seed was 0 and is 1", lambda: again(adapter(seed=1))),
        ("class names was", lambda: again(adapter(), classes=tuple("abcde"))),
        ('images was "noise" and is "sound"', lambda: again(adapter(), dataclasses.replace(array(), name="sound"))),
        ('model was null and is "a"', lambda: again(adapter(), facts={"model": "a"})),
        ("state at the start was", lambda: again(used(adapter()))),
    ]

    def used(model: AnyAdapter) -> AnyAdapter:
        model(textbook.batches((8,))[0].sigmoid())
        return model

    def again(model: AnyAdapter, dataset: ArrayDataset | None = None, **options: Any) -> Summary:
        keywords = {"batch_size": BATCH, "shuffle": True, **options}
        return predict(dataset or array(), model, output=output, **keywords)

    for said, attempt in cases:
        with pytest.raises(StateError, match="restart=True") as error:
            attempt()
        assert said in str(error.value)
        assert listing(tmp_path) == before
    predict(array(), adapter(lr=0.02), output=output, batch_size=BATCH, restart=True)
    predict(array(), adapter(lr=0.02), output=tmp_path / "fresh.csv", batch_size=BATCH)
    assert output.read_bytes() == (tmp_path / "fresh.csv").read_bytes()


def test_images_that_changed(tmp_path: Path) -> None:
    root, output = folder(tmp_path / "photos"), tmp_path / "out.csv"

    def go(output: Path) -> Summary:
        return predict(image_folder(root), adapter(), output=output, source=root, batch_size=BATCH)

    stop_after(3, output, dataset=image_folder(root), source=root)
    os.utime(root / "5.png", (0, 99))
    before = listing(tmp_path)
    with pytest.raises(StateError, match="of the 24 images that are done, some were added, removed or changed"):
        go(output)
    assert listing(tmp_path) == before
    os.utime(root / "5.png", (0, 5))
    # What is not done yet may change.
    Image.fromarray(pixels(1, seed=1)[0]).save(root / "30.png")
    (root / "45.png").unlink()
    Image.fromarray(pixels(1, seed=2)[0]).save(root / "46.png")
    assert go(output).resumed == 24
    go(tmp_path / "fresh.csv")
    assert output.read_bytes() == (tmp_path / "fresh.csv").read_bytes()


def test_more_images_after_the_last_batch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All was done but the joining: the last batch, of six, would now be another."""
    root, output = folder(tmp_path / "photos"), tmp_path / "out.csv"
    monkeypatch.setattr(table, "write", crash)
    with pytest.raises(CrashError):
        predict(image_folder(root), adapter(), output=output, source=root, batch_size=BATCH)
    monkeypatch.undo()
    Image.fromarray(pixels(1)[0]).save(root / "46.png")
    with pytest.raises(StateError, match="ends with a batch that was the last"):
        predict(image_folder(root), adapter(), output=output, source=root, batch_size=BATCH)
    (root / "46.png").unlink()
    summary = predict(image_folder(root), adapter(), output=output, source=root, batch_size=BATCH)
    assert (summary.resumed, summary.images) == (COUNT, COUNT)


def crash(*_: object, **__: object) -> None:
    raise CrashError


def test_damaged_states_and_parts_are_done_again(undisturbed: dict[str, bytes], tmp_path: Path) -> None:
    output = tmp_path / "out.csv"

    def die(images: int) -> None:
        if images >= 5 * BATCH:
            raise CrashError

    def part_way() -> list[Path]:
        with pytest.raises(CrashError):
            predict(array(), adapter(), output=output, batch_size=BATCH, save_every=0, progress=die)
        return sorted((tmp_path / "out.csv.work").iterdir())

    def finish() -> int:
        summary = predict(array(), adapter(), output=output, batch_size=BATCH)
        assert output.read_bytes() == undisturbed["out.csv"]
        output.unlink()
        return summary.resumed

    newest = part_way()[-1]
    assert newest.name == "state-00000004.safetensors"
    newest.write_bytes(newest.read_bytes()[:-10])
    assert finish() == 3 * BATCH
    newest = part_way()[-1]
    newest.unlink()
    assert finish() == 3 * BATCH
    for state in part_way()[-2:]:
        state.unlink()
    assert finish() == 0
    part = next(file for file in part_way() if file.name.startswith("part-00000001"))
    part.unlink()
    assert finish() == 0
    settings = tmp_path / "out.csv.work" / "settings.json"
    part_way()
    settings.write_text("{")
    with pytest.raises(StateError, match="restart=True"):
        finish()


def test_what_somebody_else_put_there_stays(tmp_path: Path) -> None:
    (tmp_path / "out.csv.work").mkdir()
    (tmp_path / "out.csv.work" / "thesis.txt").write_text("mine")
    predict(array(), adapter(), output=tmp_path / "out.csv", batch_size=BATCH)
    assert [file.name for file in (tmp_path / "out.csv.work").iterdir()] == ["thesis.txt"]


def test_two_processes_at_once(tmp_path: Path) -> None:
    output = tmp_path / "out.csv"
    with work_folder(output, {}):
        with pytest.raises(BusyError, match="another process"):
            predict(array(), adapter(), output=output, batch_size=BATCH)
        assert (tmp_path / "out.csv.work" / "lock").is_file()
    assert not list(tmp_path.iterdir())


def test_a_full_disk(tmp_path: Path, undisturbed: dict[str, bytes], monkeypatch: pytest.MonkeyPatch) -> None:
    output, real, calls = tmp_path / "out.csv", pq.write_table, [0]

    def full(*arguments: Any, **options: Any) -> None:
        calls[0] += 1
        if calls[0] == 4:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        real(*arguments, **options)

    monkeypatch.setattr(pq, "write_table", full)
    with pytest.raises(StateError, match=r"No space left on device.*run the same command again"):
        predict(array(), adapter(), output=output, batch_size=BATCH, save_every=0)
    assert calls == [4]
    assert not output.exists()
    summary = predict(array(), adapter(), output=output, batch_size=BATCH)
    assert summary.resumed == 3 * BATCH
    assert output.read_bytes() == undisturbed["out.csv"]


# Images that cannot be read.


def test_stop_at_an_image_that_cannot_be_read(tmp_path: Path) -> None:
    root, output = folder(tmp_path / "photos"), tmp_path / "out.csv"
    predict(image_folder(root), adapter(), output=tmp_path / "whole.csv", source=root, batch_size=BATCH)
    content = (root / "29.png").read_bytes()
    (root / "29.png").write_bytes(b"no image")
    with pytest.raises(StateError, match=r"29\.png cannot be read.* 24 of 46 images are done.*on_error='skip'"):
        predict(image_folder(root), adapter(), output=output, source=root, batch_size=BATCH)
    assert not output.exists()
    (root / "29.png").write_bytes(content)
    assert predict(image_folder(root), adapter(), output=output, source=root, batch_size=BATCH).resumed == 24
    assert output.read_bytes() == (tmp_path / "whole.csv").read_bytes()


def test_skip_images_that_cannot_be_read(tmp_path: Path) -> None:
    root, output = folder(tmp_path / "photos"), tmp_path / "out.parquet"
    bad = [*range(8), 9, 15, 45]  # the first batch has none that can be read
    for number in bad:
        (root / f"{number}.png").write_bytes(b"no image")
    summary = predict(image_folder(root), adapter(), output=output, source=root, batch_size=BATCH, on_error="skip")
    result, model, place = rows(output), adapter(), 0
    for start in range(0, COUNT, BATCH):
        good = [number for number in range(start, min(start + BATCH, COUNT)) if number not in bad]
        if good:
            logits = model(torch.from_numpy(pixels()[good]).permute(0, 3, 1, 2).float() / 255)
            predictions = dict(zip(good, logits.argmax(1).tolist(), strict=True))
        for number in range(start, min(start + BATCH, COUNT)):
            row = result[place]
            place += 1
            assert (row["path"], row["batch"]) == (f"{number}.png", start // BATCH)
            if number in bad:
                assert row["prediction"] is row["confidence"] is row["energy"] is row["class"] is None
                assert "cannot be read as an image" in row["note"]
                assert not row["adapted"]
            else:
                assert row["prediction"] == predictions[number]
                assert row["adapted"]
    assert (summary.images, summary.unreadable, summary.batches, summary.adapted) == (COUNT, len(bad), 6, 5)
    # Interrupted and continued, it is the same.
    again = tmp_path / "again.parquet"
    stop_after(4, again, dataset=image_folder(root), source=root, on_error="skip")
    predict(image_folder(root), adapter(), output=again, source=root, batch_size=BATCH, on_error="skip")
    assert again.read_bytes() == output.read_bytes()


def test_no_image_can_be_read(tmp_path: Path) -> None:
    root, output = folder(tmp_path / "photos", 3), tmp_path / "out.csv"
    for file in root.iterdir():
        file.write_bytes(b"")
    summary = predict(image_folder(root), adapter(), output=output, on_error="skip")
    assert (summary.images, summary.unreadable, summary.adapted) == (3, 3, 0)
    assert np.isnan(summary.mean_confidence)


# Wrong requests.


@pytest.mark.parametrize(
    ("options", "error", "said"),
    [
        ({"output": "out.txt"}, OptionError, r"must end in \.parquet or \.csv"),
        ({"output": "nowhere/out.csv"}, StateError, "nowhere does not exist"),
        ({"output": "there.csv"}, OptionError, r"there\.csv exists already.*overwrite=True"),
        ({"output": "folder.csv"}, StateError, "is a folder"),
        ({"state": "nowhere/state.safetensors"}, StateError, "nowhere does not exist"),
        ({"batch_size": 0}, OptionError, "batch_size=0"),
        ({"on_error": "ignore"}, OptionError, "stop"),
        ({"save_every": -1}, OptionError, "save_every=-1"),
        ({"workers": 0}, OptionError, "workers=0"),
        ({"classes": ("a",)}, OptionError, "5 classes, and 1 are named; name each"),
    ],
)
def test_wrong_requests_change_nothing(
    options: dict[str, Any], error: type[Exception], said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("there.csv").write_text("mine")
    Path("folder.csv").mkdir()
    with pytest.raises(error, match=said):
        predict(array(), adapter(), **{"output": "out.csv", **options})
    assert sorted(file.name for file in tmp_path.iterdir()) == ["folder.csv", "there.csv"]
    assert Path("there.csv").read_text() == "mine"


def test_a_batch_the_model_refuses_leaves_nothing_behind(tmp_path: Path) -> None:
    layers = nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 5)
    with pytest.raises(BatchError, match="channels"):
        predict(array(), cretta.adapt(nn.Sequential(*layers), "tent"), output=tmp_path / "out.csv")
    with pytest.raises(OptionError, match="no images"):
        predict(array(0), adapter(), output=tmp_path / "out.csv")
    assert not list(tmp_path.iterdir())


def test_images_that_differ_in_size(tmp_path: Path) -> None:
    root = folder(tmp_path / "photos", 4)
    Image.new("RGB", (9, 9)).save(root / "3.png")
    for on_error in ("stop", "skip"):
        with pytest.raises(OptionError, match="differ in size"):
            predict(image_folder(root), adapter(), output=tmp_path / "out.csv", on_error=on_error)
    assert [file.name for file in tmp_path.iterdir()] == ["photos"]


# Memory and parts.


def test_parts_are_saved_by_time_and_by_number(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[list[str]] = []
    folder = tmp_path / "out.parquet.work"

    def hear(_: int) -> None:
        seen.append(sorted(file.name for file in folder.glob("part-*")))

    def go(**options: Any) -> None:
        seen.clear()
        predict(array(), adapter("source"), output=tmp_path / "out.parquet", batch_size=BATCH, progress=hear, **options)
        (tmp_path / "out.parquet").unlink()

    go(save_every=3600)
    assert seen[-1] == []
    go(save_every=0)
    assert seen[-1] == [f"part-{first:08d}-{first + 1:08d}.parquet" for first in range(5)]
    monkeypatch.setattr(table, "ROWS", 2 * BATCH)
    go(save_every=3600)
    assert seen[-1] == ["part-00000000-00000002.parquet", "part-00000002-00000004.parquet"]


def test_row_groups_do_not_show_where_parts_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(table, "ROWS", 10)
    schema = pa.schema([("number", pa.int32()), ("text", pa.string())])

    def tables(*cuts: int) -> list[pa.Table]:
        whole = pa.table([pa.array(range(35), pa.int32()), [str(n % 3) for n in range(35)]], schema=schema)
        edges = [0, *cuts, 35]
        return [whole.slice(a, b - a) for a, b in itertools.pairwise(edges)]

    written = []
    for number, cuts in enumerate([(), (1, 2, 3), (10, 20, 30), (33,), tuple(range(1, 35))]):
        file = tmp_path / f"{number}.parquet"
        table.write(file, ".parquet", pa.concat_tables(tables(*cuts)), {"a": 1})
        written.append(file.read_bytes())
        metadata = pq.read_metadata(file)
        assert [metadata.row_group(group).num_rows for group in range(metadata.num_row_groups)] == [10, 10, 10, 5]
        assert read(file)["number"].to_pylist() == list(range(35))
    assert len(set(written)) == 1


# Where images come from.


def test_open_images(tmp_path: Path) -> None:
    flat = folder(tmp_path / "flat", 3)
    assert (open_images(flat).labels == -1).all()
    classes = tmp_path / "classes"
    for name in ("cat", "dog"):
        (classes / name).mkdir(parents=True)
        Image.fromarray(pixels(1)[0]).save(classes / name / "1.png")
    assert open_images(classes).classes == ("cat", "dog")
    assert open_images(classes, classes=("dog", "cat")).labels.tolist() == [0, 1]
    assert open_images(classes, classes=("dog", "cow")).labels.tolist() == [-1, -1]
    assert open_images(classes, labeled=False).labels.tolist() == [-1, -1]
    with pytest.raises(StateError, match="expected folders named after the 2 classes"):
        open_images(classes, labeled=True, classes=("dog", "cow"))
    sized = open_images(classes, size=4)
    assert isinstance(sized, FileDataset)
    assert sized.size == 4
    assert sized.read([0]).shape == (1, 4, 4, 3)
    (classes / "empty").mkdir()
    assert open_images(classes).labels.tolist() == [-1, -1]
    Image.fromarray(pixels(1)[0]).save(classes / "beside.png")
    assert len(open_images(classes)) == 3
    np.save(tmp_path / "own.npy", pixels(4))
    assert np.array_equal(open_images(tmp_path / "own.npy").read(range(4)), pixels(4))
    with pytest.raises(OptionError, match="size 4 was given; leave it out"):
        open_images(tmp_path / "own.npy", size=4)
    for wrong in ("lost", "lost.npy"):
        with pytest.raises(StateError, match="not there"):
            open_images(tmp_path / wrong)
    with pytest.raises(StateError, match="a file of another kind"):
        open_images(flat / "1.png")


def test_an_array_on_disk_that_changed(tmp_path: Path) -> None:
    source, output = tmp_path / "own.npy", tmp_path / "out.csv"
    np.save(source, pixels())
    stop_after(3, output, dataset=open_images(source), source=source)
    os.utime(source, (0, 0))
    with pytest.raises(StateError, match="changed"):
        predict(open_images(source), adapter(), output=output, source=source, batch_size=BATCH)
    changed = array()
    changed.images[3] += 1
    predict(array(), adapter(), output=output, batch_size=BATCH, restart=True)
    output.unlink()
    stop_after(3, output, dataset=array())
    with pytest.raises(StateError, match="changed"):
        predict(changed, adapter(), output=output, batch_size=BATCH)


def test_names_that_are_not_text(tmp_path: Path) -> None:
    root = tmp_path / "photos"
    root.mkdir()
    name = os.fsencode(root) + b'/\xff,"1".png'
    with open(name, "wb") as file:
        Image.fromarray(pixels(1)[0]).save(file, format="PNG")
    predict(image_folder(root), adapter("source"), output=tmp_path / "out.parquet", source=root)
    assert rows(tmp_path / "out.parquet")[0]["path"] == '\\udcff,"1".png'
    predict(image_folder(root), adapter("source"), output=tmp_path / "out.csv", source=root)
    assert pa.csv.read_csv(tmp_path / "out.csv")["path"].to_pylist() == ['\\udcff,"1".png']


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_on_a_gpu(tmp_path: Path) -> None:
    buffer = cretta.SourceBuffer(textbook.source_images(20).sigmoid(), augment="none")
    model = cretta.adapt(textbook.small_net().cuda(), "cretta", buffer=buffer, lr=1e-2)
    predict(array(), model, output=tmp_path / "gpu.parquet", batch_size=BATCH)
    predict(array(), adapter(), output=tmp_path / "cpu.parquet", batch_size=BATCH)
    gpu, cpu = (read(tmp_path / f"{name}.parquet")["energy"].to_numpy() for name in ("gpu", "cpu"))
    assert np.allclose(gpu, cpu, atol=1e-3)


def test_batches_too_small_for_their_own_statistics_get_a_hint() -> None:
    (hint,) = batch_advice(adapter("bn_adapt"), images=40, batch_size=4)
    assert "statistics of a batch of 4" in hint
    assert "statistics='moving' for images in mixed order, or statistics='auto'" in hint
    (hint,) = batch_advice(adapter("bn_adapt"), images=COUNT, batch_size=BATCH)
    assert "the last batch has 6 of 8 images" in hint
    assert not list(batch_advice(adapter("bn_adapt"), images=40, batch_size=BATCH))
    assert not list(batch_advice(adapter("bn_adapt", statistics="auto"), images=40, batch_size=4))
