"""Small real runs of teams on the letters task."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import torch
import verl.trainer.ppo.v1  # noqa: F401  # imports our trainers itself, and so has to be first

if TYPE_CHECKING:
    from tests.conftest import Trained

HERE = Path(__file__).parent
SMALL = (
    "algorithm.adv_estimator=agent_grpo data.train_batch_size=4 data.max_prompt_length=128 data.val_max_samples=4",
    "actor_rollout_ref.actor.ppo_mini_batch_size=4 actor_rollout_ref.rollout.n=4",
    "trainer.test_freq=-1 trainer.val_before_train=false",
)


@pytest.fixture(scope="session")
def train_team(main_ppo: Callable[..., Trained]) -> Callable[..., Trained]:
    """Run a team of tests/trainer/teams.py with overrides, separated by spaces; asserts the exit code."""

    def train(folder: Path, team: str, *overrides: str, exit_code: int = 0) -> Trained:
        chosen = f"+mas=team mas.workflow.name={team} mas.workflow.path={HERE}/teams.py"
        done = main_ppo(folder, *" ".join([*SMALL, chosen, *overrides]).split())
        assert done.exit_code == exit_code, done.output[-6000:]
        return done

    return train


@pytest.fixture
def adapters_on(train_team: Callable[..., Trained], tmp_path: Path) -> Callable[..., None]:
    """Train two adapters and serve their bare base on the same engine; asserts that it has the trainer's weights.

    If an adapter were stale or swapped, its log-probs would differ from the trainer's.
    """

    def train(engine: str, *overrides: str) -> None:
        done = train_team(
            tmp_path / "run",
            "Rehearsed",
            "++actor_rollout_ref.model.lora_rank=8 ++actor_rollout_ref.model.lora_alpha=16",
            "mas.policies={one:{adapter_of:main,overrides:{actor:{optim:{lr:1e-2}}}},"
            "two:{adapter_of:main,overrides:{model:{lora_rank:4},actor:{optim:{lr:3e-3}}}},main:{trainable:false}}",
            "mas.agents={writer:{policy:one},earlier:{policy:main},copier:{policy:two}}",
            f"actor_rollout_ref.rollout.name={engine} actor_rollout_ref.rollout.load_format=auto",
            "actor_rollout_ref.actor.entropy_coeff=0.1 trainer.total_training_steps=3 mas.old_log_probs_every=1",
            *overrides,
        )
        assert len(done.steps) == 3
        for metrics in done.steps.values():
            for policy in ("one", "two"):
                assert metrics[f"policy/{policy}/actor/grad_norm"] > 0
                assert metrics[f"policy/{policy}/training/rollout_probs_diff_max"] < 1e-6

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
