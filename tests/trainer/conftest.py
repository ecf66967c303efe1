"""Small real runs of teams on the letters task."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import torch

if TYPE_CHECKING:
    from tests.conftest import Trained

HERE = Path(__file__).parent
SMALL = (
    "algorithm.adv_estimator=agent_grpo",
    "data.train_batch_size=4",
    "data.max_prompt_length=128",
    "data.val_max_samples=4",
    "actor_rollout_ref.actor.ppo_mini_batch_size=4",
    "actor_rollout_ref.rollout.n=4",
    "trainer.test_freq=-1",
    "trainer.val_before_train=false",
)


@pytest.fixture(scope="session")
def train_team(main_ppo: Callable[..., Trained]) -> Callable[..., Trained]:
    """Run a team of tests/trainer/teams.py; asserts that the run ends well."""

    def train(folder: Path, team: str, *overrides: str, exit_code: int = 0, **kwargs: float) -> Trained:
        chosen = ("+mas=team", f"mas.workflow.name={team}", f"mas.workflow.path={HERE}/teams.py")
        done = main_ppo(folder, *SMALL, *(chosen if team[0].isupper() else (f"+mas={team}",)), *overrides, **kwargs)
        assert done.exit_code == exit_code, done.output[-6000:]
        return done

    return train


@pytest.fixture(scope="session")
def weights_of() -> Callable[[Path], dict[str, torch.Tensor]]:
    """The weights of a policy in a checkpoint, as plain tensors, whatever the number of workers."""

    def weights(folder: Path) -> dict[str, torch.Tensor]:
        shards = sorted(folder.glob("model_world_size_*_rank_*.pt"))
        states = [torch.load(shard, weights_only=False) for shard in shards]
        return {
            name: torch.cat([_local(state[name]) for state in states]) if len(states) > 1 else _local(value)
            for name, value in states[0].items()
        }

    return weights


def _local(tensor: torch.Tensor) -> torch.Tensor:
    local: torch.Tensor = tensor.to_local() if hasattr(tensor, "to_local") else tensor
    return local
