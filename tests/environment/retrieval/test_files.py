import gzip
import json

import pytest

from verl_mas.environment.retrieval.files import read_rows
from verl_mas.errors import DataError

ROWS = [{"text": f"row {number}"} for number in range(3)]
LINES = "".join(json.dumps(row) + "\n" for row in ROWS).encode()


def parquet() -> bytes:
    import pyarrow as pa
    import pyarrow.parquet as pq

    sink = pa.BufferOutputStream()
    pq.write_table(pa.Table.from_pylist(ROWS), sink)
    return sink.getvalue().to_pybytes()


@pytest.mark.parametrize(
    ("name", "content"), [("c.jsonl", LINES + b"\n"), ("c.jsonl.gz", gzip.compress(LINES)), ("c.parquet", parquet())]
)
def test_json_lines_gzip_and_parquet_read_alike(tmp_path, name, content):
    (tmp_path / name).write_bytes(content)
    assert list(read_rows(tmp_path / name)) == ROWS


@pytest.mark.parametrize(
    ("name", "content", "match"),
    [
        ("c.parquet", parquet()[:-30], "after 0 rows: ArrowInvalid"),
        ("c.jsonl.gz", LINES, "after 0 rows: BadGzipFile"),
        ("c.jsonl.gz", gzip.compress(LINES, mtime=0)[:-10], "EOFError"),
        ("c.jsonl", LINES + '{"text": "caf\xe9"}'.encode("latin-1"), "line 4"),
        ("c.jsonl", LINES + b"[1]", "line 4"),
    ],
)
def test_a_broken_file_is_one_clear_error(tmp_path, name, content, match):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(DataError, match=rf"{name}.*{match}"):
        list(read_rows(tmp_path / name))


def test_a_line_ends_at_a_newline_alone_and_is_utf_8_in_any_locale(tmp_path):
    row = {"text": "two\u2028lines\x85of café"}
    (tmp_path / "c.jsonl").write_text(json.dumps(row, ensure_ascii=False) + "\n", encoding="utf-8")
    assert list(read_rows(tmp_path / "c.jsonl")) == [row]
