"""The file of an evaluation's sessions."""

import pytest

from verl_mas.errors import ConfigError, DiskError
from verl_mas.results.serve.evaluate import Results

IDENTITY = {"team": "t", "step": 3, "data": "d", "engine": {}, "sampling": {}, "weights": {}}


def test_a_session_is_found_again_whatever_its_text_is_and_after_a_line_that_was_cut(tmp_path):
    path = tmp_path / "new" / "sessions.jsonl"
    # Characters that end a line for str.splitlines, and one that UTF-8 cannot encode.
    record = {"task": 0, "session": 0, "failed": False, "answer": "a\x85b\u2028c\n\ud800"}
    Results.open(path, IDENTITY, force=False).add(record)
    assert Results.open(path, IDENTITY, force=False).of(1, 1) == [record]
    path.write_text(path.read_text()[:-5])
    results = Results.open(path, IDENTITY, force=False)
    assert results.missing(1, 1) == [(0, 0)]
    results.add(record)
    assert Results.open(path, IDENTITY, force=False).of(1, 1) == [record]


def test_another_file_is_kept_unless_it_is_to_be_replaced(tmp_path):
    path = tmp_path / "notes.txt"
    path.write_text("mine\n")
    with pytest.raises(ConfigError, match="is not of an evaluation"):
        Results.open(path, IDENTITY, force=False)
    assert path.read_text() == "mine\n"
    replacing = Results.open(path, IDENTITY, force=True)
    assert replacing.records == {} and path.read_text() == "mine\n"
    replacing.begin()
    replacing.begin()
    assert Results.open(path, IDENTITY, force=False).records == {}
    with pytest.raises(DiskError, match=f"{tmp_path} cannot be written"):
        Results.open(tmp_path, IDENTITY, force=False)
