from __future__ import annotations

import json
import xml.etree.ElementTree as ElementTree

import pytest

from verl_mas import cli
from verl_mas.errors import DataError, DiskError
from verl_mas.trainer import timeline as module
from verl_mas.trainer.timeline import ENGINE, LOG_PROBS, SAMPLE, START, STEP, UPDATE, Event, Timeline, read_timeline
from verl_mas.trainer.timeline_picture import draw, row_of


@pytest.fixture
def clock(monkeypatch):
    """Sets the time."""
    monkeypatch.setattr(module.time, "time", lambda: clock.now)

    def clock(now):
        clock.now = now

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
        Event(START, 1, 10.0, 10.0),
        Event(STEP, 1, 10.0, 10.0),
        Event(SAMPLE, 1, 10.0, 12.0),
        Event(ENGINE, 1, 10.0, 11.5, "solver", "main"),
        Event(UPDATE, 1, 12.0, 15.0, "solver", "main"),
    ]
    assert read_timeline(tmp_path / module.FILE) == read_timeline(tmp_path)


def test_the_start_of_a_run_is_not_part_of_its_timeline(tmp_path, clock):
    timeline = Timeline(tmp_path, {})
    with timeline.span(module.WAKE, "solver"):
        clock(90.0)
    assert "async/seconds/wake" not in a_step(timeline, clock, 1, 100.0)
    assert read_timeline(tmp_path)[0] == Event(START, 1, 100.0, 100.0)


def test_a_resumed_run_replaces_the_steps_that_it_repeats(tmp_path, clock):
    first = Timeline(tmp_path, {})
    for step in (1, 2, 3):
        a_step(first, clock, step, 10.0 * step)
    with (tmp_path / module.FILE).open("a") as file:
        file.write('{"event": "up')  # the machine crashed while it wrote
    assert read_timeline(tmp_path)[-1].step == 3
    a_step(Timeline(tmp_path, {}), clock, 3, 90.0)
    events = read_timeline(tmp_path)
    assert [event.begin for event in events if event.event == STEP] == [10.0, 20.0, 90.0]


def test_an_evaluation_writes_nothing(clock):
    assert a_step(Timeline(None, {}), clock, 1, 10.0)["async/seconds/sample"] == 2.0


def test_a_disk_that_refuses_the_timeline_ends_the_run_by_name(tmp_path, clock):
    (tmp_path / "file").write_text("")
    with pytest.raises(DiskError, match=r"timeline\.jsonl cannot be written: "):
        Timeline(tmp_path / "file", {}).begin(1)


@pytest.fixture
def run(tmp_path, clock):
    folder = tmp_path / "run"
    timeline = Timeline(folder, {"solver": "main"})
    for step in (1, 2):
        a_step(timeline, clock, step, 10.0 * step)
    return folder


def test_the_picture_has_a_bar_per_span_at_its_place_in_time(run):
    tree = ElementTree.fromstring(draw(read_timeline(run), "a < b"))
    bars = {rect[0].text: rect for rect in tree if len(rect)}
    assert set(bars) == {
        f"step {step}: {what}"
        for step in (1, 2)
        for what in ("waits for tasks, 2.000 s", "engine has requests of solver, 1.500 s", "update of solver, 3.000 s")
    }
    waits, second = bars["step 1: waits for tasks, 2.000 s"], bars["step 2: waits for tasks, 2.000 s"]
    update = bars["step 2: update of solver, 3.000 s"]
    x, width = float(waits.get("x")), float(waits.get("width"))
    assert float(second.get("x")) == pytest.approx(x + 5 * width, abs=0.1), "10 s later"
    assert float(update.get("width")) == pytest.approx(1.5 * width, abs=0.1)
    assert [text.text for text in tree if text.get("text-anchor") == "end"] == [
        "trainer", "engine solver", "trainer solver"
    ]  # fmt: skip
    assert any(text.text == "a < b" for text in tree)


def test_an_engine_has_a_row_of_its_own():
    assert row_of(Event(ENGINE, 1, 0, 1, "a")) != row_of(Event(LOG_PROBS, 1, 0, 1, "a"))


def test_the_command_draws_some_steps_and_replaces_nothing_unasked(run, tmp_path, capsys):
    out = tmp_path / "a.svg"
    assert cli.main(["timeline", str(run), "--out", str(out), "--steps", "2"]) == 0
    assert "step 2:" in out.read_text() and "step 1:" not in out.read_text()
    assert cli.main(["timeline", str(run), "--out", str(out)]) == 1
    assert "add --force" in capsys.readouterr().err and "step 1:" not in out.read_text()
    assert cli.main(["timeline", str(run), "--out", str(out), "--force"]) == 0
    assert "step 1:" in out.read_text() and "<text" in out.read_text()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["{run}", "--out", "{run}/timeline.jsonl/b.svg"], "a file, not a folder"),
        (["{run}/checkpoints", "--out", "{run}/b.svg"], "checkpoints is not a file"),
        (["{run}", "--out", "{run}/b.svg", "--steps", "5-3"], "use --steps 3-8"),
        (["{run}", "--out", "{run}/b.svg", "--steps", "all"], "use --steps 3-8"),
        (["{run}", "--out", "{run}/b.svg", "--steps", "7-9"], "recorded steps 1 to 2"),
    ],
)
def test_a_wrong_command_is_refused_with_its_fix(run, capsys, arguments, message):
    assert cli.main(["timeline", *(argument.format(run=run) for argument in arguments)]) == 1
    assert message in capsys.readouterr().err
    assert not (run / "b.svg").exists()


def test_another_file_is_not_taken_for_a_timeline(tmp_path):
    file = tmp_path / "metrics.jsonl"
    file.write_text(json.dumps({"step": 1, "data": {}}) + "\n")
    with pytest.raises(DataError, match="every line is an event of a run"):
        read_timeline(file)
