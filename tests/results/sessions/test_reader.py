"""Sessions are read as they were written, attempt by attempt. Damage costs only the sessions that it hits."""

import json
from datetime import datetime, timedelta

import pytest
from session_records import Recorder

from verl_mas.errors import DataError
from verl_mas.results.sessions.reader import SessionEntry, SessionIndex, read_sessions, with_uniform
from verl_mas.run_folder.session_files import file_of, new_attempt, write_advantages


@pytest.fixture
def record(tmp_path):
    return Recorder(tmp_path)


def acts(folder, **wanted):
    sessions = read_sessions(folder, **wanted)
    return [(s["step"], s["attempt"], act["text"], act["advantage"]) for s in sessions for act in s["acts"]]


@pytest.fixture
def attempts(tmp_path_factory, monkeypatch):
    """Name two attempts. Between them, the clock is set back by an hour."""
    folder = tmp_path_factory.mktemp("records")
    first = new_attempt(folder)
    file = file_of(folder, False, 1, first, "0", ".parquet")
    file.parent.mkdir()
    file.touch()
    monkeypatch.setattr("verl_mas.run_folder.session_files.datetime", Past)
    return first, new_attempt(folder)


class Past(datetime):
    @classmethod
    def now(cls, tz=None):
        return datetime.now(tz) - timedelta(hours=1)


@pytest.mark.parametrize("compressed", [False, True])
def test_a_repeated_step_is_read_once_and_each_attempt_has_its_own_advantages(record, tmp_path, attempts, compressed):
    first, second = attempts
    for step, attempt, advantage in ((1, first, 1.0), (2, first, 2.0), (2, second, -2.0), (3, first, None)):
        record(step, attempt)
        if advantage is not None:
            write_advantages(tmp_path, step, attempt, {f"{step}-0_0_0": advantage}, compressed)
    if compressed:
        record.compress()
    a, b = f"text of {first}", f"text of {second}"
    assert acts(tmp_path) == [(1, first, a, 1.0), (2, second, b, -2.0), (3, first, a, None)]
    assert acts(tmp_path, step=2, attempts="all") == [(2, first, a, 2.0), (2, second, b, -2.0)]
    with pytest.raises(DataError, match="attempts='every'"):
        acts(tmp_path, attempts="every")


def test_a_damaged_line_costs_only_itself_and_is_named(record, tmp_path, caplog):
    for session in range(3):
        record(1, session=session)
    record(2)
    first, _ = sorted((tmp_path / "train").iterdir())
    for name in (
        "notes.jsonl",
        "notes.jsonl.zst",
        "000001-a-b.jsonl.old",
    ):  # a run does not write such files, so they are ignored
        (tmp_path / "train" / name).write_text(json.dumps({"note": 1}) + "\n")
    lines = first.read_bytes().splitlines(keepends=True)
    first.write_bytes(lines[0] + lines[1][:-30] + b"\n" + b"5\n" + lines[2][:-30])
    assert [step for step, *_ in acts(tmp_path)] == [1, 2]
    states = ("line 2 is damaged", "line 3 is damaged", "line 4 was not finished")
    for entry, state in zip(caplog.records, states, strict=True):
        assert f"{first}, {state} and is skipped" in entry.getMessage()


def test_a_compressed_file_that_is_damaged_costs_only_its_sessions_and_is_named(record, tmp_path, caplog):
    for step in (1, 2, 3, 4):
        record(step)
        record.compress()
    damaged, cut, empty, _ = sorted((tmp_path / "train").iterdir())
    content = bytearray(damaged.read_bytes())
    content[content.index(b"PAR1") + 600] ^= 1
    damaged.write_bytes(content)
    cut.write_bytes(cut.read_bytes()[:-1])
    empty.write_bytes(b"")
    assert [step for step, *_ in acts(tmp_path)] == [4]
    lost = [entry.getMessage() for entry in caplog.records]
    assert len(lost) == 3 and all(any(str(file) in text for text in lost) for file in (damaged, cut, empty)), lost


def test_advantages_that_are_damaged_are_named_and_the_sessions_are_read(record, tmp_path, caplog):
    record(2)
    for compressed in (False, True):
        write_advantages(tmp_path, 2, "a", {"2-0_0_0": 1.0}, compressed)
        path = file_of(tmp_path, False, 2, "a", "advantages", ".jsonl.zst" if compressed else ".jsonl")
        path.write_bytes(path.read_bytes()[:-4])
        assert acts(tmp_path, step=2) == [(2, "a", "text of a", None)]
    assert any(f"{path} is damaged" in entry.getMessage() for entry in caplog.records)


def test_a_folder_without_sessions_is_refused_and_not_read_as_none(tmp_path):
    for read in (lambda: list(read_sessions(tmp_path / "elsewhere")), lambda: SessionIndex(tmp_path)):
        with pytest.raises(DataError, match=r"default_local_dir>/trajectories"):
            read()


@pytest.mark.parametrize("compressed", [False, True])
def test_sessions_that_a_later_attempt_trained_on_are_read_with_its_advantages(record, tmp_path, attempts, compressed):
    first, second = attempts
    for session in range(3):
        record(2, first, session=session)
    # The checkpoint kept sessions 0 and 1. Session 2 was repeated; session 1 has not been trained yet.
    record(2, second, session=2)
    write_advantages(tmp_path, 2, first, {"2-0_2_0": 9.0})
    write_advantages(tmp_path, 2, second, {"2-0_0_0": 1.0, "2-0_2_0": 2.0})
    if compressed:
        record.compress()
    a, b = f"text of {first}", f"text of {second}"
    assert acts(tmp_path) == [(2, first, a, 1.0), (2, second, b, 2.0)]
    everything = [(2, first, a, 1.0), (2, first, a, None), (2, first, a, 9.0), (2, second, b, 2.0)]
    assert acts(tmp_path, attempts="all") == everything


def test_a_session_that_was_not_sampled_again_is_not_taken_from_an_earlier_attempt(record, tmp_path, attempts):
    first, second = attempts
    record(2, first)
    again = Recorder(tmp_path, sampling_rate=0.0)
    again(2, second)
    again.writer(second).end_group("2-0")
    write_advantages(tmp_path, 2, second, {"2-0_0_0": 1.0})
    assert acts(tmp_path) == [] and SessionIndex(tmp_path).left_out == 1


def test_sessions_of_a_warm_up_are_of_step_0_and_of_an_attempt_before_have_its_advantages(record, tmp_path, attempts):
    record(-1)
    write_advantages(tmp_path, -1, "a", {"-1-0_0_0": 1.0})
    assert [(text, advantage) for _, _, text, advantage in acts(tmp_path, step=0)] == [("text of a", 1.0)]
    # An attempt that started no session of a step trained on the step's sessions of the attempt before.
    first, second = attempts
    record(2, first)
    write_advantages(tmp_path, 2, second, {"2-0_0_0": 1.0})
    assert acts(tmp_path, step=2) == [(2, first, f"text of {first}", 1.0)]


def test_the_index_lists_what_the_records_say(record, tmp_path):
    for number, rewards in enumerate([(0.0, 1.0), (0.5, 0.5), (0.25,)]):
        for session, reward in enumerate(rewards):
            record(1, session=session, reward=reward, number=number, text=f"{number}/{session}")
    record.compress()
    record(4, validate=True, text="<answer>")
    index = SessionIndex(tmp_path)
    assert [(e.partition, e.step, e.key, e.reward, e.uniform) for e in index.entries] == [
        *(("train", 1, "1-0_0", 0.0, False), ("train", 1, "1-0_1", 1.0, False)),
        *(("train", 1, "1-1_0", 0.5, True), ("train", 1, "1-1_1", 0.5, True)),
        *(("train", 1, "1-2_0", 0.25, None), ("val", 4, "4-0_0", None, None)),
    ]
    for entry, session in zip(index.entries, index.records(), strict=True):
        assert (session["uid"], session["session"], session["uniform"]) == (entry.uid, entry.session, entry.uniform)
        assert (session["acts"][0]["text"], session["group"]) == (entry.answer or "<answer>", entry.uid)


def test_a_dropped_session_does_not_count_in_its_group():
    def session(number, status, score):
        return SessionEntry("u", number, 1, "train", status=status, scores={"a": [score, score]})

    first, same, dropped = session(0, "success", 1.0), session(1, "success", 1.0), session(2, "dropped", 0.0)
    assert {entry.uniform for entry in with_uniform([first, same, dropped])} == {True}
    assert {entry.uniform for entry in with_uniform([first, dropped])} == {None}


def test_the_index_of_a_run_that_trains_follows_it(record, tmp_path):
    record(1)
    index = SessionIndex(tmp_path)
    (plain,) = index.entries
    assert not index.refresh()
    record(1, session=1)
    assert index.refresh() and len(index.entries) == 2 and not index.refresh()
    # Meanwhile, the file of the entry is replaced by a compressed file.
    record.compress()
    assert index.read(plain)["session"] == 0
    record(2)
    assert index.refresh() and [entry.key for entry in index.entries] == ["1-0_0", "1-0_1", "2-0_0"]
    assert [index.read(entry)["step"] for entry in index.entries] == [1, 1, 2]


def test_a_worker_that_was_killed_between_compressing_and_deleting_leaves_no_session_twice(record, tmp_path):
    record(1)
    (path,) = (tmp_path / "train").iterdir()
    lines = path.read_bytes()
    record.compress()
    path.write_bytes(lines)
    assert len(acts(tmp_path)) == 1
