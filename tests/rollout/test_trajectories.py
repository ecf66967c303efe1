"""Session records: one line per session, attempts apart, damage limited to the line that has it."""

from __future__ import annotations

import json
import resource
from contextlib import contextmanager

import pytest

from verl_mas.config.schema import AgentSpec, TrajectorySpec
from verl_mas.errors import DataError, DiskError
from verl_mas.rollout.trajectories import TrajectoryWriter, new_attempt, read_sessions, write_advantages
from verl_mas.testing.scripted_llm import ScriptedLLM, calls
from verl_mas.workflow import Task
from verl_mas.workflows.single import Single


@pytest.fixture
def record(tmp_path, play):
    """Write a session of a step, of which the text names the attempt."""
    writers = {}

    def record(step, attempt, session=0, text="", **spec):
        writer = writers.setdefault(attempt, TrajectoryWriter(TrajectorySpec(**spec), tmp_path, attempt))
        task = Task([{"role": "user", "content": "long question"}], uid=f"{step}-0", session=session, step=step)
        writer.write(play(Single, ScriptedLLM(text or f"text of {attempt}"), task=task), "finished")

    return record


def press(button: str) -> str:
    """Press a button."""
    return f"{button} is on"


def test_an_act_with_tools_is_recorded_with_its_calls_and_all_its_messages(play, tmp_path):
    script = [calls(("press", {"button": "r" * 30}), ("pres", {}), text="Now."), "Done."]
    done = play(Single, ScriptedLLM(script), agents={"solver": AgentSpec(tools=["press"])}, tools=[press])
    TrajectoryWriter(TrajectorySpec(max_text_chars=10), tmp_path, "1").write(done, "finished")
    ((act,),) = (session["acts"] for session in read_sessions(tmp_path))
    right, wrong = act["tool_calls"]
    assert (right["name"], right["result"], right["error"]) == ("press", "r" * 10 + "... (36 characters)", None)
    assert right["arguments"].endswith("... (44 characters)") and right["seconds"] > 0 and right["reward"] is None
    assert wrong["error"].startswith("Unknown fu") and wrong["result"] is None
    assert [message["role"] for message in act["steps"]] == ["assistant", "tool", "tool", "assistant"]
    first, last = act["steps"][0], act["steps"][-1]
    assert (first["content"], last["content"], act["text"]) == ("Now.", "Done.", "Done.")
    assert first["tool_calls"][0]["function"]["arguments"].endswith("... (44 characters)")
    assert first["tool_calls"][1]["function"] == {"name": "pres", "arguments": {}}


def acts(folder, **wanted):
    sessions = read_sessions(folder, **wanted)
    return [(s["step"], s["attempt"], act["text"], act["advantage"]) for s in sessions for act in s["acts"]]


def test_a_repeated_step_is_read_once_and_each_attempt_has_its_own_advantages(record, tmp_path):
    first, second = new_attempt(), new_attempt()
    assert first < second
    for step, attempt, advantage in ((1, first, 1.0), (2, first, 2.0), (2, second, -2.0), (3, first, None)):
        record(step, attempt)
        if advantage is not None:
            write_advantages(tmp_path, step, attempt, {f"{step}-0_0_0": advantage})
    a, b = f"text of {first}", f"text of {second}"
    assert acts(tmp_path) == [(1, first, a, 1.0), (2, second, b, -2.0), (3, first, a, None)]
    assert acts(tmp_path, step=2, attempts="all") == [(2, first, a, 2.0), (2, second, b, -2.0)]
    with pytest.raises(DataError, match="attempts='every'"):
        acts(tmp_path, attempts="every")


def test_a_folder_of_an_earlier_version_is_read_as_one_attempt(record, tmp_path):
    record(1, "new")
    write_advantages(tmp_path, 1, "new", {"1-0_0_0": 1.5})
    for path in (tmp_path / "train").iterdir():
        path.rename(path.with_name(path.name.replace("-new-", "-")))
    assert acts(tmp_path) == [(1, None, "text of new", 1.5)]


def test_a_damaged_line_costs_only_itself_and_is_named(record, tmp_path, caplog):
    for session in range(3):
        record(1, "a", session)
    record(2, "a")
    first, second = sorted((tmp_path / "train").iterdir())
    lines = first.read_bytes().splitlines(keepends=True)
    first.write_bytes(lines[0] + lines[1][:-30] + b"\n" + lines[2][:-30])
    assert [step for step, *_ in acts(tmp_path)] == [1, 2]
    damaged, unfinished = (entry.getMessage() for entry in caplog.records)
    assert f"{first}, line 2 is damaged and is skipped" in damaged
    assert f"{first}, line 3 was not finished and is skipped" in unfinished
    write_advantages(tmp_path, 2, "a", {"2-0_0_0": 1.0})
    advantages = second.with_name("000002-a-advantages.jsonl")
    advantages.write_bytes(advantages.read_bytes()[:-4])
    assert acts(tmp_path, step=2) == [(2, "a", "text of a", None)]


@contextmanager
def full_disk(size):
    """Files of this process cannot become larger."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_a_record_that_does_not_fit_on_the_disk_is_an_error_and_leaves_no_part_of_a_line(record, tmp_path):
    record(1, "a")
    (path,) = (tmp_path / "train").iterdir()
    whole = path.read_bytes()
    with full_disk(len(whole) + 100):
        with pytest.raises(DiskError, match=r"-a-\w+\.jsonl cannot be written: File too large; .* GB are free"):
            record(1, "a", session=1)
        with pytest.raises(DiskError, match=r"000001-a-advantages\.jsonl cannot be written"):
            write_advantages(tmp_path, 1, "a", {f"1-0_{n}_0": 1.0 for n in range(1000)})
    assert path.read_bytes() == whole
    record(1, "a", session=2)
    assert [session["session"] for session in read_sessions(tmp_path)] == [0, 2]


def test_a_line_is_one_write(record, tmp_path, monkeypatch):
    import os

    sizes, write = [], os.write
    monkeypatch.setattr(os, "write", lambda file, line: sizes.append(len(line)) or write(file, line))
    record(1, "a", text="x" * 500_000)
    (path,) = (tmp_path / "train").iterdir()
    assert sizes == [path.stat().st_size] and sizes[0] > 500_000


def test_a_record_that_is_not_json_is_refused_with_the_reason(tmp_path):
    with pytest.raises(DataError, match=r"keys must be str(.|\n)*use text as keys"):
        write_advantages(tmp_path, 1, "a", {(1, 2): 0.5})
    assert not list(tmp_path.rglob("*.jsonl"))


def test_trajectories_are_sampled_the_same_way_every_time_and_clipped(tmp_path, record):
    for attempt in ("a", "b"):
        for session in range(200):
            record(0, attempt, session, text="long \ud800 answer", sampling_rate=0.3, max_text_chars=5)
    every = list(read_sessions(tmp_path, attempts="all"))
    first, second = ([s for s in every if s["attempt"] == attempt] for attempt in ("a", "b"))
    assert [s["session"] for s in first] == [s["session"] for s in second] and 30 < len(first) < 90
    assert first[0]["acts"][0]["messages"][0]["content"] == "long ... (13 characters)"


def test_other_files_in_the_folder_are_left_alone(record, tmp_path):
    record(1, "a")
    (tmp_path / "train" / "notes.jsonl").write_text(json.dumps({"note": 1}) + "\n")
    assert len(acts(tmp_path)) == 1


def test_a_folder_without_sessions_is_refused_and_not_read_as_none(tmp_path):
    with pytest.raises(DataError, match=r"default_local_dir>/trajectories"):
        list(read_sessions(tmp_path / "elsewhere"))


def test_sessions_that_a_later_attempt_trained_on_are_read_with_its_advantages(record, tmp_path):
    first, second = new_attempt(), new_attempt()
    for session in range(3):
        record(2, first, session=session)
    # The checkpoint kept sessions 0 and 1. Session 2 was repeated; session 1 has not been trained yet.
    record(2, second, session=2)
    write_advantages(tmp_path, 2, first, {"2-0_2_0": 9.0})
    write_advantages(tmp_path, 2, second, {"2-0_0_0": 1.0, "2-0_2_0": 2.0})
    a, b = f"text of {first}", f"text of {second}"
    assert acts(tmp_path) == [(2, first, a, 1.0), (2, second, b, 2.0)]
    everything = [(2, first, a, 1.0), (2, first, a, None), (2, first, a, 9.0), (2, second, b, 2.0)]
    assert acts(tmp_path, attempts="all") == everything


def test_sessions_of_a_warm_up_are_read_as_of_step_0(record, tmp_path):
    record(-1, "1")
    write_advantages(tmp_path, -1, "1", {"-1-0_0_0": 1.0})
    assert [(text, advantage) for _, _, text, advantage in acts(tmp_path, step=0)] == [("text of 1", 1.0)]


def test_advantages_of_an_attempt_that_started_no_session_of_the_step_belong_to_the_attempt_before(record, tmp_path):
    first, second = new_attempt(), new_attempt()
    record(2, first)
    write_advantages(tmp_path, 2, second, {"2-0_0_0": 1.0})
    assert acts(tmp_path) == [(2, first, f"text of {first}", 1.0)]
