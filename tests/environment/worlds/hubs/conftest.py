"""A short training in a world."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from verl_mas.cli.data import main
from verl_mas.testing.tiny_model import byte_tokenizer, tiny_model

if TYPE_CHECKING:
    from tests.conftest import Trained

TrainWorld = Callable[..., dict[str, float]]

SMALL = (
    "+mas=world mas.workflow.args.text=compact algorithm.adv_estimator=agent_grpo data.train_batch_size=4 "
    "data.val_max_samples=4 data.max_prompt_length=4000 data.max_response_length=4 mas.updates_per_step=1 "
    "actor_rollout_ref.actor.ppo_mini_batch_size=4 actor_rollout_ref.rollout.n=2 "
    "reward.custom_reward_function.path=null trainer.total_training_steps=3 trainer.test_freq=3"
)


def assert_trained(done: Trained) -> None:
    """Some step has a gradient, of every policy."""
    norms = defaultdict(list)
    for metrics in done.steps.values():
        for name, value in metrics.items():
            if name.endswith("actor/grad_norm"):
                norms[name].append(value)
    assert norms and all(max(values) > 0 for values in norms.values()), norms


@pytest.fixture(scope="session")
def reader(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random tiny model that reads long texts, byte by byte."""
    return tiny_model(tmp_path_factory.mktemp("reader"), tokenizer=byte_tokenizer(max_length=4096))


@pytest.fixture
def train_world(main_ppo: Callable[..., Trained], reader: Path, tmp_path: Path) -> TrainWorld:
    """Train for three steps; the metrics of the last one. learns: a random model earns different rewards there."""

    def train(world: str, options: Mapping[str, object], *overrides: str, learns: bool = True) -> dict[str, float]:
        given = ",".join(f"{name}:{json.dumps(value)}" for name, value in options.items())
        main(["world", world, "--train-rows", "12", "--test-rows", "4", "--out", str(tmp_path / "data")])
        files = {"train": "train", "val": "test"}
        done = main_ppo(
            tmp_path / "run",
            *SMALL.split(),
            *(f"data.{split}_files={tmp_path}/data/{file}.parquet" for split, file in files.items()),
            f"actor_rollout_ref.model.path={reader}",
            f"mas.workflow.args.world='{world}'",
            f"mas.workflow.args.options={{{given}}}",
            *overrides,
        )
        assert done.exit_code == 0 and sorted(done.steps)[-3:] == [1, 2, 3], done.output[-6000:]
        assert all(metrics["session/dropped"] == 0 for metrics in done.steps.values() if "session/dropped" in metrics)
        if learns:
            assert_trained(done)
        return done.steps[3]

    return train
