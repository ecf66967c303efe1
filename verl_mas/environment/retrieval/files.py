"""Reads the rows of a file: JSON lines (which may be gzipped), parquet, or a stream of Arrow batches."""

import gzip
import json
import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, TypeAlias

from verl_mas.errors import DataError

# A row of a user's file or of a public data set. It may have values of any type.
Row: TypeAlias = Mapping[str, Any]

SUFFIXES = (".jsonl", ".jsonl.gz", ".parquet", ".arrow")


def read_rows(path: Path) -> Iterator[Row]:
    """Yield the rows of a file. A file that is neither .parquet nor .arrow is read as JSON lines in UTF-8."""
    if not path.is_file():
        raise DataError(f"file {path}", rule="the file must exist", fix="give the path of an existing file")
    number = 0
    try:
        for row in _READERS.get(path.suffix, _json_lines)(path):
            yield row
            number += 1
    except DataError:
        raise
    # Errors of Arrow are ValueErrors; a truncated gzip file raises EOFError.
    except (OSError, EOFError, zlib.error, ValueError) as error:
        value = f"{path} cannot be read after {number} rows: {type(error).__name__}: {error}"
        rule = f"a file of rows is a valid {', '.join(SUFFIXES)} file"
        raise DataError(value, rule=rule, fix="download or write the file again") from error


def _json_lines(path: Path) -> Iterator[Row]:
    # In binary mode lines end only at \n, and a decoding error is found in its own line.
    with gzip.open(path) if path.suffix == ".gz" else open(path, "rb") as lines:
        for number, line in enumerate(lines, 1):
            if not line.strip():
                continue
            try:
                row = json.loads(line)
            except ValueError:
                row = None
            if not isinstance(row, dict):
                value, rule = f"{path}, line {number}: {line[:80]!r}", "one JSON object per line, in UTF-8"
                raise DataError(value, rule=rule, fix="correct the line; a parquet file must be named .parquet")
            yield row


def _parquet(path: Path) -> Iterator[Row]:
    import pyarrow.parquet

    with pyarrow.parquet.ParquetFile(path) as file:
        for batch in file.iter_batches():
            yield from batch.to_pylist()


def _arrow(path: Path) -> Iterator[Row]:
    """Read rows from an Arrow stream as `datasets` writes it."""
    import pyarrow

    with pyarrow.memory_map(str(path)) as file, pyarrow.ipc.open_stream(file) as batches:
        for batch in batches:
            yield from batch.to_pylist()


_READERS = {".parquet": _parquet, ".arrow": _arrow}
