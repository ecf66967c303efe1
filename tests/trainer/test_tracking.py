import json
import math
from pathlib import Path

import pytest
from verl.trainer.ppo.v1 import trainer_base
from verl.utils.tracking import Tracking

from verl_mas.run_folder.metrics import MetricsFile, file_of_verl, read_steps
from verl_mas.trainer.recorded import logging_to


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch) -> Path:
    monkeypatch.chdir(tmp_path)
    for name in ("PATH", "ROOT"):
        monkeypatch.delenv(f"VERL_FILE_LOGGER_{name}", raising=False)
    return tmp_path


def trained(steps, own=None, until=None, backends=("file",)):
    """What verl's trainer does."""
    with logging_to(own, until):
        loggers = trainer_base.Tracking(
            project_name="team", experiment_name="first", default_backend=list(backends), config={}
        )
    for step in steps:
        loggers.log(data={"a": step}, step=step)
    loggers.finish()


def logged(here):
    return [json.loads(line) for line in (here / "team/first.jsonl").read_text().splitlines()]


def test_every_step_is_in_the_folder_of_the_run_whatever_its_loggers_are(here):
    trained([1, 2], MetricsFile(here), backends=("console",))
    assert [(step.number, step.values) for step in read_steps(here / "metrics.jsonl")] == [(1, {"a": 1}), (2, {"a": 2})]
    assert not (here / "team").exists()


def test_verls_file_has_the_steps_before_a_resume_once(here):
    trained([1, 2, 3, 4])
    trained([3, 4, 5], until=2)
    assert logged(here) == [{"step": step, "data": {"a": step}} for step in range(1, 6)]


def test_verls_file_is_overwritten_by_a_run_that_starts_over_and_kept_by_an_evaluation(here):
    trained([1, 2])
    trained([1])
    trained([9], until=math.inf)
    assert [line["step"] for line in logged(here)] == [1, 9]


@pytest.mark.parametrize("variable", ["VERL_FILE_LOGGER_PATH", "VERL_FILE_LOGGER_ROOT", None])
def test_the_file_is_looked_for_where_verl_writes_it(here, monkeypatch, variable):
    if variable:
        monkeypatch.setenv(variable, str(here / "set"))
    trained([1])
    assert [path for path in here.rglob("*") if path.is_file()] == [file_of_verl("team", "first").absolute()]


def test_other_trainers_of_the_process_have_verls_own_loggers(here):
    with pytest.raises(RuntimeError), logging_to(None, None):
        raise RuntimeError
    assert trainer_base.Tracking is Tracking
