"""Rows as a parquet file, which is what verl reads."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from verl_mas.errors import DataError
from verl_mas.retrieval.files import Row
from verl_mas.run_folder.disk import writing


def write_parquet(rows: Sequence[Row], out: Path) -> None:
    """`out` is replaced only by a whole file."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        table = pa.Table.from_pylist(list(rows))
    except (pa.ArrowInvalid, pa.ArrowTypeError) as error:
        rule = "a column of parquet has one type: all ground truths are texts, or all are lists"
        fix = "make the answers and the columns that are kept alike in all rows"
        raise DataError(f"rows with different types: {error}", rule=rule, fix=fix) from error
    with writing(out, "the rows are written as a whole file"):
        out.parent.mkdir(parents=True, exist_ok=True)
        part = out.with_name(f"{out.name}.part")
        pq.write_table(table, part)
        part.replace(out)
