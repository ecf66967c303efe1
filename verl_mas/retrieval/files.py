"""Rows of a file: JSON lines, gzipped or not, or parquet."""

from __future__ import annotations

import gzip
import json
import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from verl_mas.errors import DataError

SUFFIXES = (".jsonl", ".jsonl.gz", ".parquet")


def read_rows(path: Path) -> Iterator[Mapping[str, Any]]:
    """One row after another; what is not .parquet is read as JSON lines in UTF-8."""
    if not path.is_file():
        raise DataError(f"file {path}", rule="it exists", fix="give the path of an existing file")
    number = 0
    try:
        for row in _parquet(path) if path.suffix == ".parquet" else _json_lines(path):
            yield row
            number += 1
    except DataError:
        raise
    # Arrow's errors are ValueErrors; a gzip file that was cut ends in an EOFError.
    except (OSError, EOFError, zlib.error, ValueError) as error:
        raise DataError(
            f"{path} cannot be read after {number} rows: {type(error).__name__}: {error}",
            rule=f"a file of rows is one of {', '.join(SUFFIXES)}",
            fix="fetch or write the file again",
        ) from error


def _json_lines(path: Path) -> Iterator[Mapping[str, Any]]:
    # Bytes: their lines end at \n alone, and a line that is no UTF-8 is found in its place.
    with gzip.open(path) if path.suffix == ".gz" else open(path, "rb") as lines:
        for number, line in enumerate(lines, 1):
            if not line.strip():
                continue
            try:
                row = json.loads(line)
            except ValueError:
                row = None
            if not isinstance(row, dict):
                raise DataError(
                    f"{path}, line {number}: {line[:80]!r}",
                    rule="one JSON object a line, in UTF-8",
                    fix="mend the line; a parquet file must be named .parquet",
                )
            yield row


def _parquet(path: Path) -> Iterator[Mapping[str, Any]]:
    import pyarrow.parquet

    with pyarrow.parquet.ParquetFile(path) as file:
        for batch in file.iter_batches():
            yield from batch.to_pylist()
