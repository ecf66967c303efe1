"""Runs that join a cluster of two nodes, with nothing in the command for it."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from ray_start import RayStart

from verl_mas import read_sessions

# Other runs join a cluster that is there before them, too.
pytestmark = [pytest.mark.e2e, pytest.mark.nightly]
RUN = (
    *("-m", "verl.trainer.main_ppo", "+platform=cpu", "+recipe=first_run/laptop", "algorithm.adv_estimator=agent_grpo"),
    *("data.train_files=task/train.parquet", "data.val_files=task/test.parquet", "data.train_batch_size=4"),
    *("actor_rollout_ref.model.path=task/model", "actor_rollout_ref.rollout.n=2"),
    *("actor_rollout_ref.actor.ppo_mini_batch_size=4", "data.max_prompt_length=128"),
    *("trainer.total_training_steps=1", "trainer.test_freq=-1", "trainer.val_before_train=false"),
)


@pytest.fixture(scope="module")
def cluster(warm_python: str) -> Iterator[RayStart]:
    with RayStart(warm_python) as cluster:
        yield cluster


@pytest.fixture
def run(cluster: RayStart, letters: Path, tmp_path: Path) -> Callable[..., str]:
    """Run a command in a folder with the task; the output."""
    shutil.copytree(letters, tmp_path / "task")

    def run(*command: str) -> str:
        log = tmp_path / "log.txt"
        with log.open("w") as out:
            done = subprocess.run(
                command, cwd=tmp_path, env=cluster.environment, stdout=out, stderr=out, timeout=300, check=False
            )
        assert done.returncode == 0, log.read_text()[-6000:]
        return log.read_text()

    return run


def test_a_run_joins_the_cluster_of_ray_start_and_its_relative_paths_are_those_of_the_command(
    run, cluster, warm_python, tmp_path
):
    run(warm_python, *RUN, "+mas=single", "trainer.default_local_dir=mine/checkpoints", "trainer.save_freq=1")
    assert (tmp_path / "mine/checkpoints/global_step_1/run.json").exists()
    (metrics,) = map(json.loads, (tmp_path / "first_run/laptop.jsonl").read_text().splitlines())
    assert metrics["step"] == 1
    assert list(cluster.where.iterdir()) == []


def test_a_submitted_job_spans_two_nodes_with_the_workflow_of_the_folder_that_it_sends(
    run, cluster, warm_python, tmp_path
):
    """Each node has one GPU, and two policies share both."""
    shutil.copy(Path(__file__).parent / "teams.py", tmp_path / "my_team.py")
    team = ("+mas=team", "mas.workflow.name=Pair", "mas.workflow.path=my_team.py", "trainer.nnodes=2")
    policies = ("mas.policies={a: {}, b: {}}", "mas.agents={writer: {policy: a}, copier: {policy: b}}")
    output = run(
        *(sys.executable, "-m", "ray.scripts.scripts", "job", "submit", "--address", cluster.jobs),
        *("--working-dir", ".", "--", warm_python, *RUN, *team, *policies),
        f"trainer.default_local_dir={tmp_path}/out",
    )
    assert "succeeded" in output
    sessions = list(read_sessions(tmp_path / "out" / "trajectories"))
    assert len(sessions) == 8
