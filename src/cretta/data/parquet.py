"""Images in Parquet files, as datasets of Hugging Face are published."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from cretta.data.dataset import DecodedDataset, Labels, Pixels, Size
from cretta.data.folder import natural, number_names, numbered, some
from cretta.data.parquet_rows import ParquetRows, Part
from cretta.errors import StateError


@dataclass(frozen=True, eq=False)
class ParquetDataset(DecodedDataset):
    """Encoded images in rows, decoded to RGB when they are read; see :func:`parquet_file`."""

    name: str
    rows: ParquetRows
    labels: Labels
    classes: tuple[str, ...]
    domain: str = ""
    size: Size = None
    shorter: int | None = None

    def __post_init__(self) -> None:
        self._check(self.classes, len(self.rows))

    def _decode(self, index: int) -> Pixels:
        row = range(len(self))[index]
        encoded = self.rows[row]
        if not encoded:
            raise StateError(
                f"{self._describe(row)} holds no image: remove the row, or write the file's bytes into it."
            )
        return self._decode_encoded(BytesIO(encoded), row)

    def _describe(self, index: int) -> str:
        return self.rows.describe(index)


def parquet_file(
    path: str | Path,
    *,
    image: str = "image",
    label: str | None = "label",
    classes: Sequence[str] | None = None,
    size: Size = None,
) -> ParquetDataset:
    """Return the images of a Parquet file, or of all .parquet files of a folder.

    The column ``image`` holds encoded images (PNG, JPEG, …) as bytes, or as Hugging Face's struct of ``bytes`` and
    ``path``. The column ``label`` holds integers or names; ``label=None`` reads images without labels (-1). Names are
    numbered in alphabetical order, or as in ``classes``. Integers are named by the file's Hugging Face features if it
    has some, by ``classes``, or by themselves; if both name them, ``classes`` sets the order. ``size`` is that of
    :class:`FileDataset`.

    A row group is read when one of its images is. Encoded images stay in memory, or in a temporary file if they are
    large.
    """
    files = _files(Path(path))
    parts = [_part(file, image) for file in files]
    rows = ParquetRows(parts)
    if len(rows) == 0:
        raise StateError(f"{files[0]} holds no rows: give a file with images.")
    if label is None:
        labels, names = np.full(len(rows), -1, np.int64), tuple(classes or ())
    else:
        labels, names = _labels(parts, label, None if classes is None else tuple(classes))
    source = Path(path).resolve()
    return ParquetDataset(source.name if source.is_dir() else source.stem, rows, labels, names, "", size)


def _files(folder: Path) -> list[Path]:
    if not folder.is_dir():
        return [folder]
    files = [file for file in folder.iterdir() if file.suffix == ".parquet" and file.name[0] != "."]
    if not files:
        raise StateError(f"{folder} holds no .parquet files: give the folder that does, or the files.")
    return sorted(files, key=lambda file: natural(file.name))


def _part(file: Path, image: str) -> Part:
    try:
        footer = pq.read_metadata(file)
    except (pa.ArrowException, OSError) as error:
        raise StateError(f"{file} cannot be read as a Parquet file ({error}): restore the file.") from error
    kind = _type(file, footer, image, "image=…")
    if _is_binary(kind):
        return Part(file, footer, image)
    if pa.types.is_struct(kind) and any(child.name == "bytes" and _is_binary(child.type) for child in kind):
        return Part(file, footer, f"{image}.bytes")
    raise StateError(
        f"{file}: the column {image!r} is of type {kind}; expected encoded images as binary, or a struct with a "
        "field bytes."
    )


def _type(file: Path, footer: Any, column: str, option: str) -> Any:
    schema = footer.schema.to_arrow_schema()
    if column not in schema.names:
        raise StateError(f"{file} has the columns {some(schema.names)}, not {column!r}: name the column with {option}.")
    kind = schema.field(column).type
    return kind.value_type if pa.types.is_dictionary(kind) else kind


def _is_binary(kind: Any) -> bool:
    tests = (pa.types.is_binary, pa.types.is_large_binary, pa.types.is_binary_view, pa.types.is_fixed_size_binary)
    return any(test(kind) for test in tests)


def _is_text(kind: Any) -> bool:
    return any(test(kind) for test in (pa.types.is_string, pa.types.is_large_string, pa.types.is_string_view))


def _labels(parts: Sequence[Part], label: str, classes: tuple[str, ...] | None) -> tuple[Labels, tuple[str, ...]]:
    written: list[Any] = []
    texts, features = set(), set()
    for part in parts:
        kind = _type(part.path, part.footer, label, "label=…, or label=None for images without labels")
        if not (_is_text(kind) or pa.types.is_integer(kind)):
            raise StateError(
                f"{part.path}: the column {label!r} is of type {kind}; expected integers or names of classes."
            )
        values = _values(part, label)
        if None in values:
            raise StateError(f"{part.path}, row {values.index(None)} has no label (NULL): complete or remove it.")
        written += values
        texts.add(_is_text(kind))
        features.add(_class_names(part.footer, label))
    if len(texts) > 1 or len(features) > 1:
        raise StateError(
            f"{parts[0].path} and the files after it disagree on what the labels in {label!r} mean: write them again "
            "with the same type and the same features, or read them one by one."
        )
    names = features.pop()
    if not texts.pop():
        labels = np.asarray(written, np.int64)
        if names is None or classes in (None, names) or (labels < 0).all():
            return labels, classes or names or numbered(int(labels.max()) + 1)
        if labels.min() < 0 or labels.max() >= len(names):
            raise StateError(
                f"{parts[0].path}: labels run from {labels.min()} to {labels.max()}, for {len(names)} named classes."
            )
        written = [names[number] for number in written]
    return number_names(written, classes, parts[0].path)


def _values(part: Part, column: str) -> list[Any]:
    try:
        with pq.ParquetFile(part.path, metadata=part.footer) as file:
            values: list[Any] = file.read(columns=[column]).column(0).to_pylist()
    except (pa.ArrowException, OSError) as error:
        raise StateError(f"{part.path} cannot be read as a Parquet file ({error}): restore the file.") from error
    return values


def _class_names(footer: Any, column: str) -> tuple[str, ...] | None:
    """Return the names that Hugging Face's ``ClassLabel`` has for the integers of a column, if there are some."""
    try:
        features = json.loads((footer.metadata or {})[b"huggingface"])["info"]["features"]
        names = features[column]["names"]
    except (KeyError, TypeError, ValueError):
        return None
    return tuple(map(str, names)) if isinstance(names, list) and names else None
