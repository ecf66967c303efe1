import json

import pytest

from verl_mas.checks.data import check_data, check_files, first_rows

LONG = {"trainer__total_training_steps": 100, "trainer__total_epochs": 3}
PROMPT = [{"role": "user", "content": "2 + 3?"}]


@pytest.fixture
def say(on_rows):
    return lambda rows, **settings: "\n".join(map(str, check_data(on_rows(rows, **settings))))


def test_rows_of_both_kinds_are_read(say, make, tmp_path):
    assert say([{"prompt": PROMPT}] * 8) == ""
    (tmp_path / "rows.json").write_text(json.dumps([{"prompt": PROMPT}] * 100))
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps({"prompt": PROMPT}) + "\n" for _ in range(100)))
    for name in ("rows.json", "rows.jsonl"):
        found = first_rows(make(), "data.train_files", str(tmp_path / name))
        assert (found.total, len(found.sample)) == (100, 64)


@pytest.mark.parametrize(
    ("rows", "settings", "says"),
    [
        ([{"question": "x"}], {}, "no column 'prompt'"),
        ([{"prompt": "2 + 3?"}], {}, "a prompt is a list of messages"),
        ([{"prompt": [{"role": "human", "content": "2"}]}], {}, "the role human"),
        ([{"prompt": [{"role": "user"}]}], {}, "a role and a content"),
        ([{"prompt": PROMPT, "extra_info": "x"}], {}, "it is a mapping, or null"),
        ([{"prompt": PROMPT}] * 4, {}, "4 rows in data.train_files"),
        ([{"prompt": PROMPT}] * 8, LONG, "total_epochs=100"),
        ([{"prompt": PROMPT}] * 8, {"data__val_files": "none.parquet"}, "data.val_files=none.parquet does not exist"),
        ([{"prompt": PROMPT}] * 8, {"data__val_files": "rows.csv"}, "verl reads files that end in"),
        ([{"prompt": PROMPT}] * 8, {"data__val_files": []}, "at least one file"),
    ],
)
def test_what_verl_cannot_read_is_refused(say, rows, settings, says):
    assert says in say(rows, **settings)


def test_a_broken_file_is_refused(make, tmp_path):
    (tmp_path / "rows.parquet").write_bytes(b"PAR1")
    (tmp_path / "rows.jsonl").write_text("{")
    for name in ("rows.parquet", "rows.jsonl"):
        assert "cannot be read" in str(first_rows(make(), "data.train_files", str(tmp_path / name)))


def test_a_function_where_verl_does_not_read_it_is_refused(make):
    both = {"custom_reward_function__path": "a.py", "reward__custom_reward_function__path": "none.py"}
    (error, missing) = check_files(make(**both))
    assert "reads it below reward alone" in error.rule and "none.py does not exist" in missing.value
