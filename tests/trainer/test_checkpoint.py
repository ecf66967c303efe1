from __future__ import annotations

import random
from pathlib import Path

import numpy as np
import pytest
import torch

from verl_mas.config.compose import compose
from verl_mas.config.load import load
from verl_mas.errors import ConfigError
from verl_mas.trainer.checkpoint import Checkpoints, run_identity


class Policy:
    def __init__(self, name, log):
        self.name, self.log = name, log

    def save(self, folder, remote, step, keep):
        self.log.append(("save", self.name, step, keep))
        (Path(folder) / self.name).mkdir(parents=True)

    def load(self, folder, delete):
        self.log.append(("load", self.name, delete))


@pytest.fixture
def saved(tmp_path):
    log = []
    policies = {name: Policy(name, log) for name in ("a", "b")}
    checkpoints = Checkpoints(policies, {"estimator": "agent_grpo", "models": {"main": "a"}}, resumes=True)
    checkpoints.save_checkpoint(str(tmp_path / "global_step_3" / "actor"), None, 3, max_ckpt_to_keep=2)
    return checkpoints, tmp_path / "global_step_3", log


def test_every_policy_is_saved_under_its_name_and_one_old_checkpoint_more_is_kept(saved):
    _, folder, log = saved
    assert log == [("save", "a", 3, 3), ("save", "b", 3, 3)]
    assert {path.name for path in folder.iterdir()} == {"a", "b", "driver_rng.pt", "run.json"}


def test_loading_restores_every_policy_and_the_drivers_random_numbers(saved):
    checkpoints, folder, log = saved
    expected = [random.random(), float(np.random.rand()), float(torch.rand(()))]
    checkpoints.load_checkpoint(str(folder / "actor"))
    assert log[2:] == [("load", "a", False), ("load", "b", False)]
    assert [random.random(), float(np.random.rand()), float(torch.rand(()))] == expected


def test_a_checkpoint_of_another_team_is_refused(saved):
    checkpoints, folder, log = saved
    checkpoints.policies = {"a": Policy("a", log), "c": Policy("c", log)}
    with pytest.raises(ConfigError, match="has no policy c; it has a, b"):
        checkpoints.load_checkpoint(str(folder / "actor"))


def test_a_run_does_not_resume_by_itself_from_another_runs_checkpoint(saved):
    checkpoints, folder, log = saved
    checkpoints.run = checkpoints.run | {"models": {"main": "b"}, "of a later version": 1}
    with pytest.raises(ConfigError) as refused:
        checkpoints.load_checkpoint(str(folder / "actor"))
    message = str(refused.value)
    assert "was trained with models={'main': 'a'}, and this run has {'main': 'b'}" in message
    assert f"trainer.resume_from_path={folder}" in message and len(log) == 2
    # Given by its path, it is loaded.
    checkpoints.resumes = False
    checkpoints.load_checkpoint(str(folder / "actor"))
    assert len(log) == 4


def test_the_identity_of_a_run_names_its_estimator_workflow_policies_and_models():
    config = compose(["+mas=solver_verifier", "algorithm.adv_estimator=agent_grpo", "actor_rollout_ref.model.path=m"])
    assert run_identity(config, load(config.mas)) == {
        "algorithm.adv_estimator": "agent_grpo",
        "mas.workflow.name": "solver_verifier",
        "policy of agents": {"solver": "main", "verifier": "main"},
        "models": {"main": "m"},
    }
