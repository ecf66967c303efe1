import gzip
import json

import pytest

from verl_mas.environment.retrieval.corpus import Passage, read_corpus
from verl_mas.environment.retrieval.files import read_rows
from verl_mas.errors import DataError


def test_a_search_r1_row_is_title_and_text_and_of_one_line_text():
    passage = Passage.from_row({"id": 7, "contents": '"Paris"\nA city in France.'}, 0)
    assert passage == Passage("7", "A city in France.", "Paris")
    assert passage.contents == '"Paris"\nA city in France.'
    assert Passage.from_row({"contents": "no title here"}, 3) == Passage("3", "no title here")


@pytest.mark.parametrize("row", [{"id": 1}, {"text": "  "}, {"text": 5}])
def test_a_row_without_text_is_refused_with_its_number(row):
    with pytest.raises(DataError, match=r"row 12 .* has no text"):
        Passage.from_row(row, 12)


@pytest.mark.parametrize("field", ["id", "title", "text", "contents"])
def test_half_a_surrogate_pair_is_refused_with_its_row(field):
    row = {"text": "fine", field: "half a \ud83d pair"}
    if field == "contents":
        del row["text"]
    with pytest.raises(DataError, match=r"row 12 .*surrogates not allowed"):
        Passage.from_row(row, 12)


def test_an_id_that_two_passages_have_and_a_missing_file_are_refused(tmp_path):
    with pytest.raises(DataError, match=r"nowhere\.jsonl"):
        list(read_corpus(tmp_path / "nowhere.jsonl"))
    (tmp_path / "c.jsonl").write_text('{"id": 7, "text": "a"}\n{"id": "7", "text": "b"}\n')
    with pytest.raises(DataError, match=r"c\.jsonl, row 1: the id '7' is used twice"):
        list(read_corpus(tmp_path / "c.jsonl"))


ROWS = [{"text": f"row {number}"} for number in range(3)]
LINES = "".join(json.dumps(row) + "\n" for row in ROWS).encode()


def parquet() -> bytes:
    import pyarrow as pa
    import pyarrow.parquet as pq

    sink = pa.BufferOutputStream()
    pq.write_table(pa.Table.from_pylist(ROWS), sink)
    return sink.getvalue().to_pybytes()


@pytest.mark.parametrize(
    ("name", "content"),
    [("c.jsonl", LINES + b"\n"), ("c.jsonl.gz", gzip.compress(LINES, mtime=0)), ("c.parquet", parquet())],
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
