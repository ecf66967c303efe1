from __future__ import annotations

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
    """A run whose process executes `program` in place of verl, in a folder of its own."""

    def of(program: str, **settings) -> DemoRun:
        def start(run, log):
            command = [sys.executable, "-c", program, str(run.metrics)]
            return subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT, start_new_session=True)

        monkeypatch.setattr(DemoRun, "start", start)
        monkeypatch.setattr(live, "POLL_S", 0.02)
        return DemoRun([], tmp_path, steps_in_all=1, **settings)

    return of


def test_without_a_terminal_the_output_begins_before_the_first_step_and_leaves_no_step_out(training):
    out = io.StringIO()
    lines = "\n".join(json.dumps({"step": step, "data": {}}) for step in (0, 1, 2))
    run = training(writes(lines))
    run.watch("success", Console(file=out, width=200))
    assert [line.split()[:2] for line in out.getvalue().splitlines()[:4]] == [
        ["training:", "1"],
        ["step", "0"],
        ["step", "1"],
        ["step", "2"],
    ]


def writes(line: str) -> str:
    return f"import sys; open(sys.argv[1], 'w').write({line + chr(10)!r})"


def test_without_a_terminal_every_step_is_a_line(training):
    out = io.StringIO()
    training(writes(STEP)).watch("success", Console(file=out))
    assert out.getvalue().count("step 1 of 1  success 0.500\n") == 1


def test_what_a_run_logged_is_returned(training):
    steps = training(writes(STEP)).watch("success", SILENT)
    assert [(step.number, step.values["success"]) for step in steps] == [(1, 0.5)]


def test_a_failed_run_reports_the_end_of_its_log(training):
    with pytest.raises(RunFailed, match="no such model"):
        training("raise SystemExit('no such model')").watch("success", SILENT)


def test_a_resumed_run_keeps_what_was_logged_before_and_a_new_one_does_not(training):
    training(writes(STEP)).watch("success", SILENT)
    second = STEP.replace('"step": 1', '"step": 2')
    assert [step.number for step in training(writes(second), resume=True).watch("success", SILENT)] == [1, 2]
    assert [step.number for step in training(writes(second)).watch("success", SILENT)] == [2]


def test_the_validation_of_a_resumed_run_keeps_the_other_metrics_of_the_step(training):
    training(writes(STEP)).watch("success", SILENT)
    validated = json.dumps({"step": 1, "data": {"held out": 0.75}})
    (step,) = training(writes(validated), resume=True).watch("success", SILENT)
    assert step.values == {"success": 0.5, "held out": 0.75}


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
