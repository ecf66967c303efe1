"""Two real policies on one GPU, with whichever of verl's GPU engines is installed."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

HERE = Path(__file__).parent
pytestmark = [
    pytest.mark.gpu,
    pytest.mark.e2e,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU"),
]


@pytest.mark.parametrize("serving", ["together", "phases"])
@pytest.mark.parametrize("engine", ["sglang", "vllm"])
def test_two_policies_share_a_gpu(letters, tmp_path, engine, serving):
    if importlib.util.find_spec(engine) is None:
        pytest.skip(f"{engine} is not installed")
    command = [
        *(sys.executable, "-m", "verl.trainer.main_ppo", "+mas=team", "mas.workflow.name=Pair"),
        *(f"mas.workflow.path={HERE}/teams.py", "algorithm.adv_estimator=agent_grpo"),
        *(f"data.train_files={letters}/train.parquet", f"data.val_files={letters}/test.parquet"),
        *("data.train_batch_size=4", "data.max_prompt_length=128", "data.max_response_length=8"),
        "reward.custom_reward_function.path=pkg://verl_mas.data.letters",
        "reward.custom_reward_function.name=score",
        *(f"actor_rollout_ref.model.path={letters}/model", f"actor_rollout_ref.rollout.name={engine}"),
        *("actor_rollout_ref.actor.ppo_mini_batch_size=4", "actor_rollout_ref.actor.use_dynamic_bsz=true"),
        *("actor_rollout_ref.rollout.n=4", "actor_rollout_ref.rollout.gpu_memory_utilization=0.3"),
        "actor_rollout_ref.rollout.calculate_log_probs=true",
        *("mas.policies={a:{},b:{}}", "mas.agents={writer:{policy:a},copier:{policy:b}}"),
        *(f"+mas.pools.shared.serving={serving}", "trainer.n_gpus_per_node=1", "trainer.total_training_steps=3"),
        *("trainer.val_before_train=false", "trainer.test_freq=-1", "trainer.save_freq=-1"),
        *("trainer.logger=[console,file]", f"trainer.default_local_dir={tmp_path}", f"hydra.run.dir={tmp_path}"),
    ]
    env = os.environ | {"VERL_FILE_LOGGER_PATH": f"{tmp_path}/metrics.jsonl"}
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=1200, check=False)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]
    records = [json.loads(line)["data"] for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert len(records) == 3
    for record in records:
        for policy in ("a", "b"):
            assert record[f"mas/{policy}/actor/grad_norm"] > 0
            assert record[f"mas/{policy}/training/rollout_actor_probs_pearson_corr"] > 0.95
