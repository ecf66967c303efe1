"""An entry of each kind is one file: of an installed package, or of mas.plugins. An engine brings its facts with it."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
USES = """
import asyncio
import sys
import torch
from verl.workers.rollout.base import get_rollout_class
from verl.workers.rollout.replica import RolloutReplicaRegistry
from verl_mas import AdvantageInput, BranchSpec, Execution, ScriptedLLM, Task, board, cli
from verl_mas import Stdio, compute_advantages, run, run_tests
from verl_mas.checks.run import examine_command
from verl_mas.config.schema import MasConfig
from verl_mas.engines.sampling import sampling_errors
from verl_mas.planning.fit import needed_tokens
from verl_mas.planning.load import Policy
from verl_mas.config.user_code import load_user_code

plugins, out = sys.argv[1:-1], sys.argv[-1]
load_user_code(MasConfig(plugins=plugins))
# The workflow, its grader and the commit rule.
task, llm = Task([{"role": "user", "content": "?"}], ground_truth="b"), ScriptedLLM({"guesser": ["a", "b"]})
session = run("acme_guess", task, llm, branch=BranchSpec(k=2, commit="acme_last"))
assert [reply.committed for reply in session.replies] == [False, True] and session.team_reward == 1.0
scores = torch.tensor([1.0, 0.0])
rows = AdvantageInput(scores, task=["t", "t"], session=[0, 1], agent=["x", "x"], local_reward=scores)
assert compute_advantages("acme_mean", rows).advantages.tolist() == [0.5, -0.5]
assert board("acme_countdown", 0, "train", {"start": 5}).distance() == 5
execution = Execution("acme_echo")
[verdict] = asyncio.run(run_tests(execution.open(), "1 2", [Stdio("", "1 2")], execution.limits))
assert verdict.passed
names = RolloutReplicaRegistry.get("acme").__name__, get_rollout_class("acme", "async").__name__
assert names == ("Replica", "Adapter")
plugged = [f"--plugins={plugin}" for plugin in plugins]
rows = ["--train-rows", "8", "--test-rows", "2"]
assert cli.main(["data", "puzzle", "acme_countdown", "--out", out, *rows, *plugged]) == 0
rollout = "actor_rollout_ref.rollout"
settings = "mas.workflow.name=acme_guess algorithm.adv_estimator=acme_mean mas.branch.commit=acme_last mas.branch.k=2"
model = "actor_rollout_ref.rollout.name=acme actor_rollout_ref.model.path=owner/tiny"
sizes = "data.train_batch_size=8 actor_rollout_ref.actor.ppo_mini_batch_size=8 actor_rollout_ref.rollout.n=4"
team = f"+mas=team +platform=cpu {settings} {model} {sizes} mas.plugins={plugins}"
team += f" data.train_files={out}/train.parquet data.val_files={out}/test.parquet"
command = team.replace("'", "").split()
assert cli.main(["check", *command]) == 0
# The facts of the engine: for the plan, for an act, and for the checks.
of_free = Policy("main", None, "acme", fraction=0.5, row=7)
assert (of_free.memory.of_free, needed_tokens(of_free)) == (True, 7)
assert [error.value for error in sampling_errors({"min_p": 0.1}, "acme", "act")] == ["act.min_p=0.1"]
assert "max_num_batched_tokens=9" in examine_command([*command, f"{rollout}.max_num_batched_tokens=9"]).problems
assert cli.main(["check", *command, "mas.reward.preset=sparse"]) == 1
"""


def use(out: Path, *plugins: str, path: str = "") -> None:
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([path, os.environ.get("PYTHONPATH", "")])}
    command = [sys.executable, "-c", USES, *plugins, str(out)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert (out / "train.parquet").is_file() and "guesser acts on main" in done.stdout
    # The needs of an estimator are in its file.
    assert "mas.reward.local=0 (preset sparse) with algorithm.adv_estimator=acme_mean" in done.stdout + done.stderr


@pytest.mark.e2e
def test_an_installed_package_adds_one_entry_of_each_kind(tmp_path):
    source, target = tmp_path / "source", tmp_path / "site-packages"
    shutil.copytree(HERE, source, ignore=shutil.ignore_patterns("test_*", "__pycache__"))
    install = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-index", "--no-build-isolation"]
    subprocess.run([*install, "--target", str(target), str(source)], check=True)
    use(tmp_path / "out", path=str(target))


@pytest.mark.e2e
@pytest.mark.nightly
def test_a_file_of_mas_plugins_adds_the_same_entries(tmp_path):
    use(tmp_path / "out", str(HERE / "acme_team.py"))


@pytest.mark.e2e
def test_a_run_trains_with_the_workflow_the_estimator_and_the_commit_rule_of_a_file(main_ppo, tmp_path):
    own = ["mas.workflow.name=acme_guess", "algorithm.adv_estimator=acme_mean", "mas.branch.commit=acme_last"]
    done = main_ppo(
        tmp_path / "run",
        *("+mas=team", f"mas.plugins=[{HERE / 'acme_team.py'}]", *own, "mas.branch.k=2"),
        *("data.train_batch_size=4", "actor_rollout_ref.actor.ppo_mini_batch_size=4", "actor_rollout_ref.rollout.n=2"),
        *("trainer.total_training_steps=1", "trainer.test_freq=-1", "trainer.save_freq=-1"),
    )
    assert done.exit_code == 0, done.output[-6000:]
    assert done.steps[1]["session/acts/mean"] == 2.0
