"""Trains programs of other frameworks with a tiny model."""

import json
import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from async_tests import pytest_pyfunc_call as pytest_pyfunc_call


@pytest.fixture(scope="session")
def long_model(letters: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tiny model, whose tokens are bytes, with a context that is long enough for the instructions of any
    framework."""
    folder = shutil.copytree(letters / "model", tmp_path_factory.mktemp("long") / "model")
    config = folder / "config.json"
    config.write_text(json.dumps(json.loads(config.read_text()) | {"max_position_embeddings": 16384}))
    return folder


@pytest.fixture
def trained(main_ppo: Callable[..., Any], tmp_path: Path, long_model: Path) -> Callable[[str], list[Any]]:
    return partial(train, main_ppo, tmp_path, long_model)


def train(main_ppo: Callable[..., Any], folder: Path, model: Path, arguments: str) -> list[Any]:
    run = (
        f"+mas=program mas.workflow.args={{{arguments}}} algorithm.adv_estimator=agent_grpo data.train_batch_size=2 "
        f"actor_rollout_ref.model.path={model} data.max_prompt_length=16000 data.max_response_length=16 "
        "data.val_max_samples=2 actor_rollout_ref.actor.ppo_mini_batch_size=2 actor_rollout_ref.rollout.n=2 "
        "trainer.test_freq=-1 trainer.total_training_steps=2"
    )
    done = main_ppo(folder / "run", *run.split())
    assert done.exit_code == 0, done.output[-6000:]
    assert len(done.steps) == 2
    for metrics in done.steps.values():
        assert metrics["session/dropped"] == metrics["session/retried"] == 0
        assert metrics["training/rollout_probs_diff_max"] < 1e-6
    return list(done.steps.values())
