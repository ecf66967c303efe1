"""Teams on one GPU, with each engine that is installed there; without a GPU, the checks of the same commands."""

import json
import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch

from verl_mas.checks.run import examine_command
from verl_mas.planning.hardware import parse_gpus
from verl_mas.testing import letters
from verl_mas.testing.tiny_model import tiny_model

HERE = Path(__file__).parent
ENGINES = ["sglang", "vllm", "transformers"]
TEAMS = {
    "together": "mas.policies={a:{},b:{}}",
    "phases": "mas.policies={a:{},b:{}} +mas.pools.shared.serving=phases",
    "frozen": "mas.policies={a:{},b:{trainable:false}}",
}
STEPS = 3


@pytest.fixture(scope="module")
def task(tmp_path_factory):
    """The letters task with a wider model, because engines on a GPU need heads of at least 64."""
    folder = tmp_path_factory.mktemp("gpu")
    letters.write(folder)
    tiny_model(folder / "model", hidden=128)
    return folder


def arguments(task: Path, folder: Path, engine: str, team: str) -> list[str]:
    attention = "flash_attention_2" if find_spec("flash_attn") else "sdpa"
    # Capturing graphs would take longer than sampling so few tokens, hence `enforce_eager`.
    settings = [
        f"+mas=team mas.workflow.name=Pair mas.workflow.path={HERE}/teams.py {TEAMS[team]}",
        "mas.agents={writer:{policy:a},copier:{policy:b}} algorithm.adv_estimator=agent_grpo",
        f"data.train_files={task}/train.parquet data.val_files={task}/test.parquet data.train_batch_size=4",
        "data.max_prompt_length=128 data.max_response_length=8 mas.old_log_probs_every=1",
        "reward.custom_reward_function.name=score",
        f"reward.custom_reward_function.path=pkg://verl_mas.testing.letters actor_rollout_ref.model.path={task}/model",
        f"+actor_rollout_ref.model.override_config.attn_implementation={attention}",
        "actor_rollout_ref.actor.strategy=fsdp2 actor_rollout_ref.actor.use_dynamic_bsz=true",
        f"actor_rollout_ref.actor.ppo_mini_batch_size=4 actor_rollout_ref.rollout.name={engine}",
        "actor_rollout_ref.rollout.calculate_log_probs=true actor_rollout_ref.rollout.tensor_model_parallel_size=1",
        "actor_rollout_ref.rollout.n=4 actor_rollout_ref.rollout.gpu_memory_utilization=0.3",
        "actor_rollout_ref.rollout.max_model_len=512 actor_rollout_ref.rollout.enforce_eager=true",
        "transfer_queue.backend.SimpleStorage.num_data_storage_units=1 trainer.n_gpus_per_node=1 trainer.save_freq=-1",
        f"trainer.total_training_steps={STEPS} trainer.val_before_train=false trainer.test_freq=-1",
        f"trainer.logger=[console,file] trainer.default_local_dir={folder}/checkpoints hydra.run.dir={folder}/hydra",
    ]
    return " ".join(settings).split()


@pytest.mark.gpu
@pytest.mark.e2e
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU")
@pytest.mark.parametrize("team", TEAMS)
@pytest.mark.parametrize("engine", ENGINES)
def test_a_team_trains_on_one_gpu(task, tmp_path, engine, team):
    if find_spec(engine) is None:
        pytest.skip(f"{engine} is not installed")
    command = [sys.executable, "-m", "verl.trainer.main_ppo", *arguments(task, tmp_path, engine, team)]
    env = os.environ | {"VERL_FILE_LOGGER_PATH": f"{tmp_path}/metrics.jsonl"}
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=1200, check=False)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]
    records = [json.loads(line)["data"] for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert len(records) == STEPS
    for record in records:
        # If a single policy trains, its metrics have verl's names.
        for prefix in [""] if team == "frozen" else ["policy/a/", "policy/b/"]:
            assert record[f"{prefix}actor/grad_norm"] > 0
            assert record[f"{prefix}training/rollout_actor_probs_pearson_corr"] > 0.95
        assert record["agent/copier/acts"] == 16


@pytest.mark.parametrize("team", TEAMS)
@pytest.mark.parametrize("engine", ENGINES)
def test_the_commands_of_the_gpu_tests_pass_the_checks_for_one_gpu(task, tmp_path, engine, team):
    """The checks are for another machine, on which the engine is installed."""
    report = examine_command(arguments(task, tmp_path, engine, team), parse_gpus("1x80"))
    assert report.accepted, report.problems
