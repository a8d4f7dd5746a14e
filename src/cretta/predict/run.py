"""The run: images → stream → adapter → rows, kept as it goes."""

from __future__ import annotations

import dataclasses
import hashlib
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import torch
from torch import Tensor

from cretta import streams
from cretta.adapter import Adapter
from cretta.data.dataset import ImageDataset, Pixels
from cretta.errors import CrettaError, OptionError, StateError
from cretta.predict import joined
from cretta.predict.ahead import ahead
from cretta.predict.labels import Labels
from cretta.predict.reader import ImageNames, Reader, UnreadableError
from cretta.predict.rows import Rows, schema, table
from cretta.predict.summary import Counting, Summary
from cretta.predict.work import Kept, WorkFolder
from cretta.storage import atomic_write, tensorfile


def predict(
    dataset: ImageDataset,
    model: Adapter[Any],
    *,
    output: str | Path,
    source: str | Path | None = None,
    batch_size: int = 200,
    shuffle: bool = False,
    classes: Sequence[str] = (),
    labelled: bool | None = None,
    transform: Callable[[Tensor], Tensor] | None = None,
    workers: int | None = None,
    on_error: str = "stop",
    overwrite: bool = False,
    restart: bool = False,
    save_every: float = 10.0,
    state: str | Path | None = None,
    facts: Mapping[str, Any] | None = None,
    progress: Callable[[int], None] = lambda images: None,
) -> Summary:
    """Predicts every image of ``dataset`` by ``model``, which adapts as it goes, into a .parquet or .csv file.

    Images reach ``transform``, then the model, as floats in [0, 1], (N, 3, H, W). Their order is the dataset's or, with
    ``shuffle``, random by the model's seed. ``source`` is where the dataset was opened from: paths are told from there.

    Work is kept in ``<output>.work`` every ``save_every`` seconds. If the process dies, the same call goes on from
    there, and the file comes out as if nothing had happened; ``restart`` starts over. ``on_error="skip"`` notes an
    image that cannot be read and goes on without it. ``labelled=None`` takes the dataset's labels where they can be the
    model's; ``classes`` are the names of the model's. ``state`` is where the adapter is saved at the end, ``facts``
    are what else the result depends on, and ``progress`` hears how many images are done.
    """
    if len(dataset) == 0:
        raise OptionError(f"{dataset.name} has no images; there is nothing to predict.")
    stream = (
        streams.iid(len(dataset), batch_size, seed=model.options.seed)
        if shuffle
        else streams.ordered(np.arange(len(dataset)), batch_size)
    )
    reader = Reader(dataset, ImageNames(dataset, None if source is None else Path(source)), workers, on_error)
    labels = Labels(dataset, tuple(classes), labelled)
    path = Path(output)
    _check_files(path, overwrite, state)
    if isinstance(save_every, bool) or not save_every >= 0:
        raise OptionError(f"save_every={save_every!r}: give a number of seconds, 0 for after every batch.")
    settings = {
        **_described(model),
        **_described_images(dataset),
        "batch_size": batch_size,
        "shuffle": shuffle,
        "labelled": labelled,
        "classes": list(classes),
        "transform": None if transform is None else getattr(transform, "__qualname__", type(transform).__qualname__),
        **(facts or {}),
    }
    with WorkFolder(path, settings, restart=restart) as work:
        run = Run(stream, reader, model, transform, labels, work)
        run.follow(save_every, progress)
        summary = run.join(path)
        if state is not None:
            model.save(state)
        work.remove()
    return summary


def _check_files(output: Path, overwrite: bool, state: str | Path | None) -> None:
    if output.suffix not in joined.ENDINGS:
        raise OptionError(f"output={str(output)!r}: the name must end in {' or '.join(joined.ENDINGS)}.")
    for path in [output, *([] if state is None else [Path(state)])]:
        if not path.parent.is_dir():
            raise OptionError(f"{path}: the folder {path.parent} does not exist; make it first.")
        if path.is_dir():
            raise OptionError(f"{path} is a folder; give the name of a file.")
    if output.exists() and not overwrite:
        raise OptionError(f"{output} exists already; choose another name, or pass overwrite=True.")


def _described(model: Adapter[Any]) -> dict[str, Any]:
    weights = (part for pair in model.net.state_dict().items() if isinstance(pair[1], Tensor) for part in pair)
    start = (part for pair in sorted(model.state().items()) for part in pair)
    return {
        "cretta": version("cretta"),
        "torch": torch.__version__,
        "method": model.name,
        "options": dataclasses.asdict(model.options),
        "weights": tensorfile.fingerprint(weights),
        "state at the start": tensorfile.fingerprint(start),
        "buffer": model.buffer.fingerprint if model.buffer is not None and model.facts.source_data else None,
        "device": model.generator.device.type,
    }


def _described_images(dataset: ImageDataset) -> dict[str, Any]:
    scaling = {name: getattr(dataset, name, None) for name in ("size", "shorter")}
    return {"images": dataset.name, **scaling}


class Run:
    """Follows a stream, keeping rows and states."""

    def __init__(
        self,
        stream: streams.Stream,
        reader: Reader,
        model: Adapter[Any],
        transform: Callable[[Tensor], Tensor] | None,
        labels: Labels,
        work: WorkFolder,
    ) -> None:
        self.stream = stream
        self.reader = reader
        self.model = model
        self.transform = transform
        self.labels = labels
        self.work = work
        self.waiting: list[Rows] = []
        """Done and not yet kept."""
        self.kept = Kept()
        self.done = 0
        self.mark = hashlib.sha256()
        self.resumed = 0
        self.seconds = 0.0

    def follow(self, save_every: float, progress: Callable[[int], None]) -> None:
        """Predicts what is left of the stream."""
        batches = list(self.stream)
        self.kept = self.work.resume(self.model, self._mark_first)
        self.done = self.resumed = self.kept.images
        if not self.done:
            self.mark = hashlib.sha256()
        if self.done != sum(map(len, batches[: self.kept.batches])):
            raise StateError(
                f"{self.work.folder} ends with a batch that was the last then, and there are more images now; "
                "restart=True throws it away and starts over."
            )
        progress(self.done)
        begin = saved = time.perf_counter()
        settled = True
        try:
            left = list(enumerate(batches))[self.kept.batches :]
            with closing(ahead(left, lambda job: self.reader.read(job[1]))) as reading:
                for (number, batch), (pixels, unreadable, marks) in reading:
                    settled = False
                    rows = Rows(number, batch.indices, unreadable)
                    if pixels is not None:
                        self._answer(rows, pixels)
                    self.waiting.append(rows)
                    self.done += len(batch)
                    self.mark.update(marks)
                    settled = True
                    progress(self.done)
                    # Whether there are labels is known with the first answer; rows wait for it.
                    much = sum(len(rows.indices) for rows in self.waiting) >= joined.ROWS
                    if self.labels.known and (much or time.perf_counter() - saved >= save_every):
                        self._keep()
                        saved = time.perf_counter()
            self._keep()
        except UnreadableError as wrong:
            self._keep()
            raise StateError(
                f"{wrong} {self.done} of {self.stream.images} images are done and kept: the same command goes on from "
                "there. on_error='skip' goes on without such images."
            ) from wrong
        except (KeyboardInterrupt, CrettaError):
            # In the middle of a batch the model may be ahead of its rows.
            if settled and self.labels.known:
                self._keep()
            raise
        self.seconds = time.perf_counter() - begin

    def _answer(self, rows: Rows, pixels: Pixels) -> None:
        images = torch.from_numpy(pixels).to(self.model.generator.device)
        x = images.permute(0, 3, 1, 2).float().div_(255)
        logits = self.model(self.transform(x) if self.transform is not None else x)
        self.labels.look_at(logits.shape[1])
        rows.answer(logits, self.model.last, self.model.options.temperature)

    def _keep(self) -> None:
        # Rows that cannot be kept are done again; a second try, while the error is on its way up, would fail too.
        waiting, self.waiting = self.waiting, []
        if waiting:
            now = Kept(waiting[-1].batch + 1, self.done, self.mark.hexdigest())
            rows = table(waiting, self.reader.names.name, self.labels.classes, self.labels.values)
            self.work.keep(rows, self.model, self.kept, now)
            self.kept = now

    def _mark_first(self, images: int) -> str:
        """The fingerprint of the first so many images of the stream, as they are now."""
        self.mark = hashlib.sha256()
        for batch in self.stream:
            if images <= 0:
                break
            self.mark.update(self.reader.marks(batch.indices[:images]))
            images -= len(batch)
        return self.mark.hexdigest()

    def join(self, output: Path) -> Summary:
        """Joins what is kept into the output."""
        counting = Counting(output)

        def counted() -> Iterator[pa.Table]:
            for part in self.work.tables():
                counting.add(part)
                yield part

        columns = schema("label" in self.work.columns())
        with atomic_write(output, within=self.work.folder) as temporary:
            joined.write(temporary, output.suffix, counted(), columns, self.work.settings)
        summary = counting.summary
        summary.resumed, summary.seconds = self.resumed, self.seconds
        return summary
