import io
import json
import subprocess
import sys

import pytest
from rich.console import Console

from verl_mas.errors import RunFailed
from verl_mas.gym.demos import live
from verl_mas.gym.demos.live import DemoRun

SILENT = Console(file=io.StringIO())
STEP = json.dumps({"step": 1, "data": {"success": 0.5}})
IGNORES = "import signal, time; signal.signal(signal.SIGINT, signal.SIG_IGN); print('on', flush=True); time.sleep(60)"


@pytest.fixture
def training(monkeypatch, tmp_path):
    """Make a run whose process executes `program` instead of verl, in its own folder."""

    def of(program: str, **settings) -> DemoRun:
        def start(run, log):
            command = [sys.executable, "-c", program, str(run.metrics)]
            return subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT, start_new_session=True)

        monkeypatch.setattr(DemoRun, "start", start)
        monkeypatch.setattr(live, "POLL_S", 0.02)
        return DemoRun([], tmp_path, steps_in_all=1, **settings)

    return of


def writes(*lines: str) -> str:
    text = "".join(f"{line}\n" for line in lines)
    return f"import sys; open(sys.argv[1], 'a').write({text!r})"


def test_without_a_terminal_the_output_begins_before_the_first_step_and_has_a_line_per_step(training):
    out = io.StringIO()
    others = [json.dumps({"step": step, "data": {}}) for step in (0, 2)]
    steps = training(writes(others[0], STEP, others[1])).watch("success", Console(file=out, width=200))
    first, *lines = out.getvalue().splitlines()[:4]
    assert first.startswith("training: 1 steps, log in ")
    assert lines == ["step 0 of 1", "step 1 of 1  success 0.500", "step 2 of 1"]
    assert [(step.number, step.values) for step in steps] == [(0, {}), (1, {"success": 0.5}), (2, {})]


def test_a_failed_run_reports_the_end_of_its_log(training):
    with pytest.raises(RunFailed, match="no such model"):
        training("raise SystemExit('no such model')").watch("success", SILENT)


def test_a_resumed_run_keeps_what_was_logged_before_and_a_new_one_does_not(training):
    def steps(line, **settings):
        return [step.number for step in training(writes(line), **settings).watch("success", SILENT)]

    second = STEP.replace('"step": 1', '"step": 2')
    assert [steps(STEP), steps(second, resume=True), steps(second)] == [[1], [1, 2], [2]]


@pytest.mark.parametrize("program", ["import time; print('on', flush=True); time.sleep(60)", IGNORES])
def test_ctrl_c_ends_the_run_even_if_it_ignores_the_signal(training, monkeypatch, program):
    monkeypatch.setattr(live, "GRACE_S", 0.3)
    run = training(program)
    started: list[subprocess.Popen] = []
    start = DemoRun.start
    monkeypatch.setattr(DemoRun, "start", lambda self, log: started.append(start(self, log)) or started[0])

    def interrupted(self, *_):
        if "on" in self.log.read_text():
            raise KeyboardInterrupt

    monkeypatch.setattr(DemoRun, "_show", interrupted)
    with pytest.raises(KeyboardInterrupt):
        run.watch("success", SILENT)
    assert started[0].returncode not in (None, 0)
