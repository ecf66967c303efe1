"""The scores that an estimator remembers, from one run to the next."""

from __future__ import annotations

import json
import logging

import pytest
import torch
from omegaconf import OmegaConf

from verl_mas.advantage import AdvantageOptions, RunningScores
from verl_mas.advantage.record import Moments, Owner
from verl_mas.errors import ConfigError, ConfigWarning
from verl_mas.trainer.checkpoint import Checkpoints
from verl_mas.trainer.metrics import agent_metrics
from verl_mas.trainer.running import RUNNING_FILE, RunningState
from verl_mas.trainer.step import Columns, step_advantages
from verl_mas.verl_.row import RowKey

OF = {"algorithm.adv_estimator": "agent_rae", "mas.advantage.weighting": "per_session", "roles": ["solver", "verifier"]}
SCORES = {
    Owner("math", "solver"): Moments(12.345678901234567, 1 / 3, 2e-17),
    Owner("", "verifier"): Moments(1.0, -1e300, 5e-324),
}


@pytest.fixture
def checkpoints(tmp_path):
    trainer = {"default_local_dir": str(tmp_path), "default_hdfs_dir": None, "max_actor_ckpt_to_keep": 2}
    return lambda running: Checkpoints({}, OmegaConf.create(trainer), {"estimator": "agent_rae"}, running)


def load(checkpoints, folder):
    checkpoints.load_checkpoint(str(folder / "actor"))


def test_a_checkpoint_restores_every_bit_and_a_run_that_remembers_nothing_resumes_from_it(checkpoints):
    folder = checkpoints(RunningState(OF, RunningScores(SCORES))).save(3, {})
    resumed = RunningState(OF)
    load(checkpoints(resumed), folder)
    assert resumed.scores.scores == SCORES
    load(checkpoints(None), folder)


@pytest.mark.parametrize(
    ("key", "other"),
    [
        ("roles", ["driver", "guide"]),
        ("roles", ["solver"]),
        ("algorithm.adv_estimator", "agent_grpo"),
        ("mas.advantage.weighting", "per_act"),
    ],
)
def test_scores_of_another_team_estimator_or_weighting_are_refused(key, other, checkpoints):
    folder = checkpoints(RunningState({**OF, key: other}, RunningScores(SCORES))).save(3, {})
    resumed = RunningState(OF)
    with pytest.raises(ConfigError) as refused:
        load(checkpoints(resumed), folder)
    assert refused.value.value == f"{folder / RUNNING_FILE} is of {key}={other}, and this run has {OF[key]}"
    assert "of the same team" in refused.value.rule and "as in that run" in refused.value.fix
    assert not resumed.scores.scores


def test_a_checkpoint_without_scores_restarts_them_with_a_warning(checkpoints, caplog):
    folder = checkpoints(None).save(3, {})
    assert not (folder / RUNNING_FILE).exists()
    resumed = RunningState(OF)
    (warning,) = resumed.problems(folder)
    assert isinstance(warning, ConfigWarning) and "running_count" in warning.reason
    with caplog.at_level(logging.WARNING, logger="verl"):
        load(checkpoints(resumed), folder)
    assert f"{folder} has no {RUNNING_FILE}" in caplog.text and not resumed.scores.scores


@pytest.mark.parametrize(
    "text", ["{", "[]", '{"scores": [{}]}', json.dumps({**OF, "scores": [{"source": "", "role": 1}]})]
)
def test_scores_that_cannot_be_read_name_the_file_and_the_fix(text, checkpoints):
    folder = checkpoints(RunningState(OF)).save(3, {})
    (folder / RUNNING_FILE).write_text(text)
    with pytest.raises(ConfigError, match=rf"{RUNNING_FILE} cannot be read(.|\n)*resume_mode=disable"):
        load(checkpoints(RunningState(OF)), folder)


def test_a_step_adds_its_scores_by_role_and_source_and_logs_them_per_role(tags):
    keys = [RowKey("1-0", session, 0) for session in (0, 1)]
    own = [tags("debater_0", role="debater", source="math"), tags("debater_1", role="debater", source="math")]
    columns = Columns(keys, own, torch.tensor([1.0, 0.0]), [torch.ones(1, dtype=torch.int64)] * 2)
    running, team = RunningScores(), ["debater_0", "debater_1"]
    per_row, found = step_advantages(columns, "agent_rae", AdvantageOptions(), team, running=running)
    assert per_row.tolist() == [1.0, -1.0], "equal debaters have one baseline"
    assert running.scores == {Owner("math", "debater"): Moments(2.0, 0.5, 0.25)}
    assert agent_metrics(columns, per_row, found)["agent/debater/group/running_mean"] == 0.5
