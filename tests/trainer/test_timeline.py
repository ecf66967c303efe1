import json

import pytest

from verl_mas.errors import DataError, DiskError
from verl_mas.trainer import timeline as lines
from verl_mas.trainer.timeline import Timeline, TimelineEvent, read_timeline, start_seconds


@pytest.fixture
def clock(monkeypatch):
    """Sets the time."""

    def clock(now):
        monkeypatch.setattr(lines.clock, "now", lambda: now)

    clock(10.0)
    return clock


def a_step(timeline, clock, step, begin):
    """Play two seconds of sampling and three of training; return the metrics since the last sampling."""
    clock(begin)
    timeline.begin(step)
    with timeline.span(lines.SAMPLE):
        clock(begin + 2)
    found = timeline.sampled({"solver": [(begin, begin + 1), (begin + 1.01, begin + 1.5)]})
    with timeline.span(lines.UPDATE, "solver"):
        clock(begin + 5)
    return found


def test_idle_shares_are_of_the_time_since_the_last_sampling(tmp_path, clock):
    timeline = Timeline(tmp_path, {"solver": "main"})
    first = a_step(timeline, clock, 1, 10.0)
    assert first == {"async/seconds/sample": 2.0, "policy/solver/idle/engine": pytest.approx(0.255)}
    second = a_step(timeline, clock, 2, 15.0)
    # 12 to 17: training until 15, engines from 15 to 16 and for 0.49 s more.
    assert second["policy/solver/idle/trainer"] == pytest.approx(0.4)
    assert second["policy/solver/idle/engine"] == pytest.approx(1 - 1.49 / 5)


def test_a_run_is_read_as_it_was_written_with_brief_pauses_of_engines_left_out(tmp_path, clock):
    timeline = Timeline(tmp_path, {"solver": "main"})
    timeline.start(1)
    a_step(timeline, clock, 1, 10.0)
    assert read_timeline(tmp_path) == [
        TimelineEvent(lines.START, 1, 10.0, 10.0),
        TimelineEvent(lines.STEP, 1, 10.0, 10.0),
        TimelineEvent(lines.SAMPLE, 1, 10.0, 12.0),
        TimelineEvent(lines.ENGINE, 1, 10.0, 11.5, "solver", "main"),
        TimelineEvent(lines.UPDATE, 1, 12.0, 15.0, "solver", "main"),
    ]
    assert read_timeline(tmp_path / lines.FILE) == read_timeline(tmp_path)
    # Trace Events, which Perfetto and Chrome open: an array whose end may be missing, in microseconds.
    events = json.loads((tmp_path / lines.FILE).read_text().rstrip(",\n") + "]")
    assert [event["ph"] for event in events] == ["i", "i", "X", "X", "X"]
    assert [event["tid"] for event in events] == ["trainer", "trainer", "trainer", "engine solver", "trainer solver"]
    update = {"name": "update", "ts": 12_000_000, "dur": 3_000_000, "pid": "main", "ph": "X", "tid": "trainer solver"}
    assert events[-1] == {**update, "args": {"step": 1, "policy": "solver", "pool": "main"}}


def start(timeline, clock, step, command):
    """Play a start: Ray is up after 5 seconds and the task runner after 9; a policy imports until 14 and its engine is
    up at 20."""
    clock(command + 9)
    timeline.start(step, [command, command + 3, command + 5])
    timeline.add(lines.PROCESSES, command + 9, command + 14, "solver")
    timeline.add(lines.LAUNCH, command + 14, command + 20, "solver")


def test_the_timeline_begins_with_the_command_and_the_start_is_in_no_metric(tmp_path, clock):
    timeline = Timeline(tmp_path, {"solver": "main"})
    start(timeline, clock, 1, 100.0)
    with timeline.span(lines.WAKE, "solver"):
        clock(121.0)
    found = a_step(timeline, clock, 1, 122.0)
    assert "async/seconds/wake" not in found and found["async/seconds/sample"] == 2.0
    events = read_timeline(tmp_path)
    assert events[:3] == [
        TimelineEvent(lines.START, 1, 100.0, 100.0),
        TimelineEvent(lines.CHECKS, 1, 100.0, 103.0),
        TimelineEvent(lines.RAY, 1, 103.0, 105.0),
    ]
    rows = [event.row for event in events if event.event in (lines.TASK_RUNNER, lines.LAUNCH)]
    assert rows == ["trainer", "engine solver"]
    parts = {"checks": 3.0, "ray": 2.0, "task_runner": 4.0, "processes solver": 5.0, "launch solver": 6.0}
    assert start_seconds(events) == {**parts, "wake solver": 12.0, "to_step_1": 22.0}


def test_an_evaluation_writes_no_timeline(tmp_path, clock, monkeypatch):
    monkeypatch.chdir(tmp_path)
    start(Timeline(), clock, 1, 100.0)
    a_step(Timeline(), clock, 1, 122.0)
    assert not list(tmp_path.iterdir())


def test_of_starts_that_failed_the_timeline_has_the_last(tmp_path, clock):
    for command in (100.0, 200.0):
        start(Timeline(tmp_path), clock, 1, command)
    events = read_timeline(tmp_path)
    assert [event.begin for event in events if event.event == lines.START] == [200.0]
    assert start_seconds(events)["launch solver"] == 6.0 and "to_step_1" not in start_seconds(events)
    a_step(timeline := Timeline(tmp_path), clock, 1, 300.0)
    a_step(timeline, clock, 2, 310.0)
    start(Timeline(tmp_path), clock, 2, 400.0)
    assert [event.step for event in read_timeline(tmp_path) if event.event == lines.START] == [1, 2], (
        "a resume keeps step 1"
    )


def test_a_resumed_run_replaces_the_steps_that_it_repeats(tmp_path, clock):
    first = Timeline(tmp_path, {})
    first.start(1)
    for step in (1, 2, 3):
        a_step(first, clock, step, 10.0 * step)
    with (tmp_path / lines.FILE).open("a") as file:
        file.write('{"name": "up')  # the machine crashed while it wrote
    assert read_timeline(tmp_path)[-1].step == 3
    resumed = Timeline(tmp_path, {})
    resumed.start(3)
    a_step(resumed, clock, 3, 90.0)
    events = read_timeline(tmp_path)
    assert [event.begin for event in events if event.event == lines.STEP] == [10.0, 20.0, 90.0]
    assert json.loads((tmp_path / lines.FILE).read_text().rstrip(",\n") + "]"), "the whole file is read by others, too"


def test_a_disk_that_refuses_the_timeline_ends_the_run_by_name(tmp_path, clock):
    (tmp_path / "file").write_text("")
    with pytest.raises(DiskError, match=r"timeline\.json cannot be written: "):
        Timeline(tmp_path / "file", {}).start(1)


def test_another_file_is_not_taken_for_a_timeline(tmp_path):
    with pytest.raises(DataError, match="is not a file"):
        read_timeline(tmp_path / "checkpoints")
    file = tmp_path / "metrics.jsonl"
    file.write_text(json.dumps({"step": 1, "data": {}}) + "\n")
    with pytest.raises(DataError, match="every line is an event of a run"):
        read_timeline(file)
