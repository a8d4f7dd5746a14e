"""Predictions for a set of images: a resumable run of an adapter over them, into one file."""

from __future__ import annotations

import dataclasses
import hashlib
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import torch
from torch import Tensor

from cretta import streams
from cretta.adapter import Adapter
from cretta.data.dataset import ImageDataset, as_batch
from cretta.errors import CrettaError, OptionError, StateError
from cretta.predict import table
from cretta.predict.images import has_labels, usable_labels
from cretta.predict.reader import Reader, UnreadableError
from cretta.predict.summary import Summary
from cretta.storage import atomic_write, check_target, require_lock, tensorfile
from cretta.storage.files import make_folder
from cretta.storage.journal import Journal, Position

FORMAT = 2
"""Version of the files in the work folder."""


def predict(
    dataset: ImageDataset,
    model: Adapter[Any],
    *,
    output: str | Path,
    source: str | Path | None = None,
    batch_size: int = 200,
    shuffle: bool = False,
    classes: Sequence[str] = (),
    labeled: bool | None = None,
    workers: int | None = None,
    on_error: str = "stop",
    overwrite: bool = False,
    restart: bool = False,
    save_every: float = 10.0,
    state: str | Path | None = None,
    facts: Mapping[str, Any] | None = None,
    progress: Callable[[int], None] = lambda images: None,
) -> Summary:
    """Predict every image of ``dataset`` by ``model``, which adapts as it goes, into a .parquet or .csv file.

    The model gets images as floats in [0, 1], (N, 3, H, W). Their order is the dataset's or, with ``shuffle``, random
    by the model's seed. Paths in the output are relative to ``source``, from which the dataset was opened.

    Work is saved in ``<output>.work`` every ``save_every`` seconds. If the process dies, the same call continues from
    there, and the file is the same as without the interruption; ``restart`` starts over. ``on_error="skip"`` records an
    image that cannot be read and continues without it. ``labeled=None`` uses the dataset's labels where they can be
    the model's; ``classes`` are the names of the model's. The adapter is saved to ``state`` at the end. ``facts`` are
    what else the result depends on. ``progress`` is called with the number of finished images.
    """
    if len(dataset) == 0:
        raise OptionError(f"{dataset.name} has no images; there is nothing to predict.")
    stream = (
        streams.iid(len(dataset), batch_size, seed=model.options.seed)
        if shuffle
        else streams.ordered(np.arange(len(dataset)), batch_size)
    )
    reader = Reader(dataset, None if source is None else Path(source), workers, on_error)
    if labeled and not has_labels(dataset):
        raise OptionError(
            f"labeled=True, but {dataset.name} has no labels; move the images into one folder per class, or take them "
            "without labels by labeled=False."
        )
    path = Path(output)
    _check_files(path, overwrite, state)
    if isinstance(save_every, bool) or not save_every >= 0:
        raise OptionError(f"save_every={save_every!r}: give a number of seconds, 0 for after every batch.")
    settings = {
        "format": FORMAT,
        **_described(model),
        "images": dataset.name,
        "size": getattr(dataset, "size", None),
        "batch_size": batch_size,
        "shuffle": shuffle,
        "labeled": labeled,
        "class names": list(classes),
        **(facts or {}),
    }
    with work_folder(path, settings, restart=restart) as journal:
        prediction = _Prediction(stream, reader, model, journal, labeled, classes)
        prediction.follow(save_every, progress)
        summary = prediction.join(path)
        if state is not None:
            model.save(state)
        journal.clear()
    return summary


@contextmanager
def work_folder(output: Path, settings: Mapping[str, Any], *, restart: bool = False) -> Iterator[Journal]:
    """Lock the folder ``<output>.work`` and yield the journal in it; remove the folder if that is empty at the end."""
    folder = output.with_name(f"{output.name}.work")
    make_folder(folder)
    with require_lock(folder / "lock"):
        journal = Journal(folder, settings, remedy="To start over, use restart=True.")
        if restart:
            journal.clear()
        try:
            journal.check()
            yield journal
        finally:
            if journal.is_empty:
                journal.clear()
                (folder / "lock").unlink(missing_ok=True)
                with suppress(OSError):  # somebody put something else there
                    folder.rmdir()


def _check_files(output: Path, overwrite: bool, state: str | Path | None) -> None:
    if output.suffix not in table.ENDINGS:
        raise OptionError(f"output={str(output)!r}: the name must end in {' or '.join(table.ENDINGS)}.")
    for path in [output, *([] if state is None else [Path(state)])]:
        check_target(path)
    if output.exists() and not overwrite:
        raise OptionError(f"{output} exists already; choose another name, or pass overwrite=True.")


def _described(model: Adapter[Any]) -> dict[str, Any]:
    start = (part for pair in sorted(model.state.snapshot().items()) for part in pair)
    versions = {"cretta": version("cretta"), "torch": torch.__version__}
    return {**versions, **model.description(), "state at the start": tensorfile.fingerprint(start)}


@dataclasses.dataclass
class _Prediction:
    """The adapter on its way through the stream, with the rows that are not saved yet."""

    stream: streams.Stream
    reader: Reader
    model: Adapter[Any]
    journal: Journal
    labeled: bool | None
    classes: Sequence[str]
    outputs: int = 0
    """Classes of the model, known after its first logits."""
    unsaved: list[pa.Table] = dataclasses.field(default_factory=list)
    consistent: bool = True
    """False while the model may be ahead of its rows: in the middle of a batch."""
    done: int = 0
    digest: Any = dataclasses.field(default_factory=hashlib.sha256)
    """Of the names and stamps of the images that are done."""
    resumed: int = 0
    seconds: float = 0.0

    def follow(self, save_every: float, progress: Callable[[int], None]) -> None:
        """Predict what is left of the stream."""
        position = self.journal.resume(self.model.restore, self._check)
        start, self.outputs = position.batches, int(position.facts.get("outputs", 0))
        self.done = self.resumed = sum(map(len, self.stream[:start]))
        self.digest = self._digest_of(self.done)
        progress(self.done)
        begun = saved = time.perf_counter()
        try:
            for step in streams.follow(self.stream[start:], self._read, self.model, before=self._begin, ahead=2):
                self.consistent = False
                unreadable, stamps = step.extra
                if len(step.logits) and not self.outputs:
                    # Raises if labels or names of classes do not fit the model.
                    usable_labels(self.reader.dataset, self.labeled, step.logits.shape[1], self.classes)
                    self.outputs = step.logits.shape[1]
                temperature = self.model.options.temperature
                self.unsaved.append(
                    table.batch_table(step.batch, unreadable, step.logits, self.model.last, temperature)
                )
                self.done += len(step.batch)
                self.digest.update(stamps)
                self.consistent = True
                progress(self.done)
                if sum(map(len, self.unsaved)) >= table.ROWS or time.perf_counter() - saved >= save_every:
                    self._save()
                    saved = time.perf_counter()
            self._save()
        except UnreadableError as error:
            self._save()
            raise StateError(
                f"{error} {self.done} of {len(self.reader.dataset)} images are done and saved: run the same command "
                "again to continue from there. on_error='skip' continues without such images."
            ) from error
        except (KeyboardInterrupt, CrettaError):
            if self.consistent:
                self._save()
            raise
        self.seconds = time.perf_counter() - begun

    def _read(self, batch: streams.Batch) -> tuple[Tensor | None, tuple[dict[int, str], bytes]]:
        pixels, unreadable, stamps = self.reader.read(batch)
        x = None if pixels is None else as_batch(pixels, self.model.device)
        return x, (unreadable, stamps)

    def _begin(self, batch: streams.Batch, x: Tensor) -> None:
        self.consistent = False

    def _save(self) -> None:
        # Rows that cannot be saved are computed again; a second try, while the error is handled, would fail too.
        rows, self.unsaved = self.unsaved, []
        if rows:
            facts = {"images": self.done, "outputs": self.outputs, "digest": self.digest.hexdigest()}
            batches = rows[-1]["batch"][-1].as_py() + 1
            position = Position(batches, {name: str(value) for name, value in facts.items()})
            self.journal.append(pa.concat_tables(rows), self.model.save, position)

    def _check(self, position: Position) -> None:
        """Raise if the images that are done have changed, or are not complete batches any more."""
        images = int(position.facts["images"])
        if self._digest_of(images).hexdigest() != position.facts["digest"]:
            raise StateError(
                f"of the {images} images that are done, some were added, removed or changed since. Restore them to "
                "continue; to start over, use restart=True."
            )
        if images != sum(map(len, self.stream[: position.batches])):
            raise StateError(
                f"{self.journal.folder} ends with a batch that was the last one, and there are more images now; to "
                "start over, use restart=True."
            )

    def _digest_of(self, images: int) -> Any:
        """Return the digest of the first images of the stream, as they are now."""
        digest = hashlib.sha256()
        for batch in self.stream:
            if images <= 0:
                break
            digest.update(self.reader.stamps(batch.indices[:images]))
            images -= len(batch)
        return digest

    def join(self, output: Path) -> Summary:
        """Join the saved parts into the output."""
        labels, classes = None, self.classes
        if self.outputs:
            labels, classes = usable_labels(self.reader.dataset, self.labeled, self.outputs, classes)
        rows = pa.concat_tables(
            table.complete(part, self.reader.name, classes, labels) for part in self.journal.tables()
        )
        with atomic_write(output, within=self.journal.folder) as temporary:
            table.write(temporary, output.suffix, rows, self.journal.manifest.settings)
        return Summary.of(rows, output, resumed=self.resumed, seconds=self.seconds)
