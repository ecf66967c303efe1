"""A run that joins a cluster of two nodes without any setting for it."""

import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from ray_start import RayStart

from verl_mas import read_sessions

# Other tests show in CI that a run joins an existing cluster.
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


def test_a_submitted_job_spans_two_nodes_with_the_workflow_of_the_folder_that_it_sends(
    cluster, letters, warm_python, tmp_path
):
    """Each node has one GPU, and two policies share both."""
    shutil.copytree(letters, tmp_path / "task")
    shutil.copy(Path(__file__).parent / "teams.py", tmp_path / "my_team.py")
    team = ("+mas=team", "mas.workflow.name=Pair", "mas.workflow.path=my_team.py", "trainer.nnodes=2")
    policies = ("mas.policies={a: {}, b: {}}", "mas.agents={writer: {policy: a}, copier: {policy: b}}")
    submit = (sys.executable, "-m", "ray.scripts.scripts", "job", "submit", "--address", cluster.jobs)
    command = [*submit, "--working-dir", ".", "--", warm_python, *RUN, *team, *policies]
    done = subprocess.run(
        [*command, f"trainer.default_local_dir={tmp_path}/out"],
        cwd=tmp_path,
        env=cluster.environment,
        timeout=300,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0 and "succeeded" in done.stdout, (done.stdout + done.stderr)[-6000:]
    assert len(list(read_sessions(tmp_path / "out" / "trajectories"))) == 8
