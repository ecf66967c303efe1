"""`verl-mas export-sessions`: files of each format, and what it refuses."""

import json

import pyarrow.parquet
import pytest
from commands import output_of
from view_runs import act, session, write_run


@pytest.fixture
def export(tmp_path, capsys):
    acts = [act(text=f"{number}", reward={"score": float(number)}) for number in range(2)]
    run = write_run(tmp_path / "run", [session(number=number, acts=[acts[number]]) for number in range(2)])
    base = ["export-sessions", run, "--out", tmp_path / "out", "--format"]
    return lambda *arguments, code=0: output_of(capsys, *base, *arguments, code=code)


def test_tables_are_written_and_skipped_acts_are_counted(export, tmp_path):
    counted = "2 sessions\n1 acts skipped: a reward below 0.5\n1 rows\n"
    assert export("sft", "--min-reward", "0.5") == f"{tmp_path / 'out'}\n{counted}"
    assert pyarrow.parquet.read_table(tmp_path / "out")["reward"].to_pylist() == [1.0]
    assert json.loads(export("preferences", "--json", "--force"))["counts"]["rows"] == 1


def test_a_folder_is_replaced_only_with_force_and_only_if_it_has_nothing_else(export, tmp_path):
    export("atif")
    assert "exists" in export("atif", "--steps", "1-1", code=1)
    export("atif", "--force")
    assert len(list((tmp_path / "out").iterdir())) == 2
    (tmp_path / "out" / "mine.txt").touch()
    assert "is a folder" in export("atif", "--force", code=1) and (tmp_path / "out" / "mine.txt").exists()


def test_sessions_that_cannot_be_exported_are_refused(export, tmp_path):
    assert "--min-reward" in export("atif", "--min-reward", "1", code=2)
    assert "has no sessions of val" in export("sft", "--validation", code=1)
    assert "in --steps 7-8" in export("atif", "--steps", "7-8", code=1)
    assert "--out is given twice" in export("sft", "--out", tmp_path / "out.jsonl", code=2)
    assert not (tmp_path / "out").exists()


def test_trajectories_are_read_as_a_run_is(export, tmp_path, capsys):
    export("sft")
    table = pyarrow.parquet.read_table(tmp_path / "out").to_pylist()
    assert "is a file" in export("atif", "--force", code=1)
    (tmp_path / "out").unlink()
    export("atif")
    again = ["export-sessions", tmp_path / "out", "--out", tmp_path / "again", "--format"]
    output_of(capsys, *again, "sft")
    assert pyarrow.parquet.read_table(tmp_path / "again").to_pylist() == table
    assert "of trajectories all are read" in output_of(capsys, *again, "otel", "--force", code=2)
