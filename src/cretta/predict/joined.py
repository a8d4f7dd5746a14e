"""Join parts into one file, whose bytes do not depend on where the parts end."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq

ENDINGS = (".parquet", ".csv")
ROWS = 1 << 16
"""Rows of a row group of Parquet; memory holds about two."""


def write(path: Path, ending: str, tables: Iterable[pa.Table], schema: pa.Schema, facts: Mapping[str, Any]) -> None:
    """Write all tables; ``facts`` go into the metadata of a Parquet file under "cretta"."""
    if ending == ".csv":
        with path.open("wb") as file:
            file.write(f"{','.join(schema.names)}\n".encode())
            options = pa.csv.WriteOptions(include_header=False, quoting_style="needed")
            with pa.csv.CSVWriter(file, schema, write_options=options) as writer:
                for table in tables:
                    writer.write_table(table)
        return
    described = schema.with_metadata({"cretta": json.dumps(facts, sort_keys=True)})
    with pq.ParquetWriter(path, described) as writer:
        for table in _regrouped(tables):
            writer.write_table(table.replace_schema_metadata(described.metadata), row_group_size=ROWS)


def _regrouped(tables: Iterable[pa.Table]) -> Iterator[pa.Table]:
    """Yield the same rows in tables of ``ROWS``; the last can be shorter.

    ``ParquetWriter`` begins a row group with every table that it gets.
    """
    waiting: list[pa.Table] = []
    for table in tables:
        waiting.append(table)
        while sum(map(len, waiting)) >= ROWS:
            # Pages end where chunks do.
            together = pa.concat_tables(waiting).combine_chunks()
            yield together.slice(0, ROWS)
            waiting = [together.slice(ROWS)]
    rest = pa.concat_tables(waiting).combine_chunks() if waiting else None
    if rest is not None and len(rest):
        yield rest
