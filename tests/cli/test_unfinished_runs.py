"""Commands on runs that train, that failed in their first step, that have one step, or that an older version wrote."""

import pytest
from commands import output_of
from view_runs import session, write_metrics, write_run

from verl_mas.run_folder.about import AboutFile

START = {"started": "2026-11-29T10:00:00+00:00", "command": "python -m verl.trainer.main_ppo +mas=single"}
FAILED = {"at": "2026-11-29T10:01:00+00:00", "step": 0, "by": "OutOfMemoryError: CUDA out of memory"}


@pytest.fixture
def run(tmp_path):
    """A run that has been started, and has logged nothing."""
    return tmp_path / "run"


@pytest.fixture
def about(run):
    run.mkdir()
    return AboutFile(run, START, {"mas": {"workflow": {"name": "single"}}})


@pytest.mark.parametrize(("command", "lacks"), [("view", "has no sessions"), ("report", "has no metrics")])
def test_a_run_without_a_step_says_to_wait_or_why_it_ended(command, lacks, run, about, capsys):
    shown = output_of(capsys, command, run, code=1)
    assert lacks in shown and "fix:  wait for its first step" in shown
    about.end(FAILED)
    shown = output_of(capsys, command, run, code=1)
    assert lacks in shown and f"read {run}/workers.log: it ended before a step was logged, by OutOfMemory" in shown


@pytest.mark.parametrize("steps", [1, 3])
def test_one_step_is_shown_and_a_line_that_is_still_written_is_left_for_later(steps, run, capsys):
    write_metrics(write_run(run, [session(step=step, number=step) for step in range(1, steps + 1)]), steps)
    with (run / "metrics.jsonl").open("a") as file:
        file.write('{"step": 9, "metr')
    assert f"1 to {steps}" in output_of(capsys, "report", run)
    assert f"{steps} sessions" in output_of(capsys, "view", run)


def test_a_format_that_this_version_does_not_read_is_one_sentence(run, about, capsys):
    text = (run / "run.yaml").read_text()
    (run / "run.yaml").write_text(text.replace("format: 1", "format: 0"))
    for command in ("view", "report"):
        shown = output_of(capsys, command, run, code=1)
        assert "run.yaml: format 0" in shown and "use the version of verl-mas that wrote it" in shown


def test_a_plan_is_of_arguments_and_not_of_a_run(run, about, capsys):
    shown = output_of(capsys, "plan", run, "--gpus", "1x80", code=1)
    assert "is the folder of a run" in shown and f"verl-mas report {run}" in shown
