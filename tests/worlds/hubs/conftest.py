"""A short training in a world."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from verl_mas.cli.data import main

if TYPE_CHECKING:
    from tests.conftest import Trained

TrainWorld = Callable[[str, Mapping[str, object]], dict[str, float]]

SMALL = (
    "+mas=world mas.workflow.args.text=compact algorithm.adv_estimator=agent_grpo data.train_batch_size=4 "
    "data.val_max_samples=4 data.max_prompt_length=128 data.max_response_length=4 mas.updates_per_step=1 "
    "actor_rollout_ref.actor.ppo_mini_batch_size=4 actor_rollout_ref.rollout.n=2 "
    "reward.custom_reward_function.path=null trainer.total_training_steps=3 trainer.test_freq=3"
)


@pytest.fixture
def train_world(main_ppo: Callable[..., Trained], tmp_path: Path) -> TrainWorld:
    """Train a random tiny model for three steps; the metrics of the last one."""

    def train(world: str, options: Mapping[str, object]) -> dict[str, float]:
        given = ",".join(f"{name}:{json.dumps(value)}" for name, value in options.items())
        main(["world", world, "--train-rows", "12", "--test-rows", "4", "--out", str(tmp_path / "data")])
        done = main_ppo(
            tmp_path / "run",
            *SMALL.split(),
            *(
                f"data.{split}_files={tmp_path}/data/{file}.parquet"
                for split, file in (("train", "train"), ("val", "test"))
            ),
            f"mas.workflow.args.world={world}",
            f"mas.workflow.args.options={{{given}}}",
        )
        assert done.exit_code == 0 and len(done.steps) == 3, done.output[-6000:]
        return done.steps[3]

    return train
