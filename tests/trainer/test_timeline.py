from __future__ import annotations

import json

import pytest

from verl_mas.errors import DataError, DiskError
from verl_mas.trainer import timeline as module
from verl_mas.trainer.timeline import ENGINE, SAMPLE, START, STEP, UPDATE, Timeline, TimelineEvent, read_timeline


@pytest.fixture
def clock(monkeypatch):
    """Sets the time."""

    def clock(now):
        monkeypatch.setattr(module.clock, "now", lambda: now)

    clock(10.0)
    return clock


def a_step(timeline, clock, step, begin):
    """Two seconds of sampling and three of training; the metrics from one sampling to the next."""
    clock(begin)
    timeline.begin(step)
    with timeline.span(SAMPLE):
        clock(begin + 2)
    found = timeline.sampled({"solver": [(begin, begin + 1), (begin + 1.01, begin + 1.5)]})
    metrics = {}
    with timeline.span(UPDATE, "solver", metrics, "timing/update"):
        clock(begin + 5)
    assert metrics == {"timing/update": 3.0}
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
    a_step(Timeline(tmp_path, {"solver": "main"}), clock, 1, 10.0)
    assert read_timeline(tmp_path) == [
        TimelineEvent(START, 1, 10.0, 10.0),
        TimelineEvent(STEP, 1, 10.0, 10.0),
        TimelineEvent(SAMPLE, 1, 10.0, 12.0),
        TimelineEvent(ENGINE, 1, 10.0, 11.5, "solver", "main"),
        TimelineEvent(UPDATE, 1, 12.0, 15.0, "solver", "main"),
    ]
    assert read_timeline(tmp_path / module.FILE) == read_timeline(tmp_path)
    # Trace Events, which Perfetto and Chrome open: an array whose end may be missing, in microseconds.
    events = json.loads((tmp_path / module.FILE).read_text().rstrip(",\n") + "]")
    assert [event["ph"] for event in events] == ["i", "i", "X", "X", "X"]
    assert [event["tid"] for event in events] == ["trainer", "trainer", "trainer", "engine solver", "trainer solver"]
    update = {"name": UPDATE, "ts": 12_000_000, "dur": 3_000_000, "pid": "main", "ph": "X", "tid": "trainer solver"}
    assert events[-1] == {**update, "args": {"step": 1, "policy": "solver", "pool": "main"}}


def test_the_start_of_a_run_is_not_part_of_its_timeline_and_an_evaluation_writes_none(tmp_path, clock):
    for timeline in (Timeline(), Timeline(tmp_path)):
        with timeline.span(module.WAKE, "solver"):
            clock(90.0)
        found = a_step(timeline, clock, 1, 100.0)
        assert "async/seconds/wake" not in found and found["async/seconds/sample"] == 2.0
    assert read_timeline(tmp_path)[0] == TimelineEvent(START, 1, 100.0, 100.0)


def test_a_resumed_run_replaces_the_steps_that_it_repeats(tmp_path, clock):
    first = Timeline(tmp_path, {})
    for step in (1, 2, 3):
        a_step(first, clock, step, 10.0 * step)
    with (tmp_path / module.FILE).open("a") as file:
        file.write('{"name": "up')  # the machine crashed while it wrote
    assert read_timeline(tmp_path)[-1].step == 3
    a_step(Timeline(tmp_path, {}), clock, 3, 90.0)
    events = read_timeline(tmp_path)
    assert [event.begin for event in events if event.event == STEP] == [10.0, 20.0, 90.0]
    assert json.loads((tmp_path / module.FILE).read_text().rstrip(",\n") + "]"), "the whole file is read by others, too"


def test_a_disk_that_refuses_the_timeline_ends_the_run_by_name(tmp_path, clock):
    (tmp_path / "file").write_text("")
    with pytest.raises(DiskError, match=r"timeline\.json cannot be written: "):
        Timeline(tmp_path / "file", {}).begin(1)


def test_another_file_is_not_taken_for_a_timeline(tmp_path):
    with pytest.raises(DataError, match="is not a file"):
        read_timeline(tmp_path / "checkpoints")
    file = tmp_path / "metrics.jsonl"
    file.write_text(json.dumps({"step": 1, "data": {}}) + "\n")
    with pytest.raises(DataError, match="every line is an event of a run"):
        read_timeline(file)
