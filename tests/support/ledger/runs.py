"""The runs whose events are recorded: tiny policies on pools of every shape that a recipe has."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from ledger.book import FILE, SIZES, read_events
from ledger.events import Event
from ledger.hooks import PLATFORM
from ledger.sizes import Sizes, write_sizes

HERE = Path(__file__).parent
AGENTS = ("first", "second", "third", "fourth")


@dataclass(frozen=True)
class Shape:
    """What decides the order of the events on a card."""

    policies: int
    phases: bool = False
    optimizer_offload: bool = True
    param_offload: bool = False


SINGLE = Shape(1)
TWO = Shape(2, param_offload=True)
THREE = Shape(3, param_offload=True)
SLICED = Shape(2, phases=True, param_offload=True)
# By run and pool; each run has one agent per policy.
RUNS: dict[str, dict[str, Shape]] = {
    "single_and_three": {"single": SINGLE, "three": THREE},
    "two_and_sliced": {"two": TWO, "sliced": SLICED},
}


def policies(run: str) -> dict[str, list[str]]:
    """The names of a run's policies, by pool."""
    return {pool: [f"{pool}{i}" for i in range(shape.policies)] for pool, shape in RUNS[run].items()}


def arguments(run: str) -> list[str]:
    """Of `python -m verl.trainer.main_ppo +platform=cpu +recipe=first_run/laptop`."""
    pools = policies(run)
    on = {policy: pool for pool, names in pools.items() for policy in names}
    agents = dict(zip(AGENTS, on, strict=True))
    return [
        *("+mas=team", "mas.workflow.name=Chain", f"mas.workflow.path={HERE}/team.py"),
        "+mas.pools={" + ",".join(f"{pool}:{_pool(shape)}" for pool, shape in RUNS[run].items()) + "}",
        "mas.policies={" + ",".join(f"{policy}:{{pool:{pool}}}" for policy, pool in on.items()) + "}",
        "mas.agents={" + ",".join(f"{agent}:{{policy:{policy}}}" for agent, policy in agents.items()) + "}",
        # As on GPUs: the platform is not the CPU to the plugin.
        *("~hydra.callbacks.verl_mas_platform", f"trainer.device={PLATFORM}"),
        *("actor_rollout_ref.actor.fsdp_config.optimizer_offload=true", "mas.updates_per_step=2"),
        *("algorithm.adv_estimator=agent_grpo", "actor_rollout_ref.rollout.free_cache_engine=true"),
        *("data.train_batch_size=4", "data.max_prompt_length=128", "actor_rollout_ref.rollout.n=2"),
        "actor_rollout_ref.actor.ppo_mini_batch_size=4",
        *("trainer.total_training_steps=2", "trainer.save_freq=1", "trainer.test_freq=-1"),
    ]


def _pool(shape: Shape) -> str:
    return "{n_gpus_per_node:1,nnodes:1,serving:" + ("phases" if shape.phases else "together") + "}"


def environment(folder: Path, sizes: Sizes) -> dict[str, str]:
    """Of a run that writes its ledger to the folder."""
    folder.mkdir(parents=True, exist_ok=True)
    write_sizes(folder / "sizes.json", sizes)
    return {
        "VERL_USE_EXTERNAL_MODULES": "ledger.hooks",
        "VERL_PLATFORM": PLATFORM,
        FILE: str(folder / "events.jsonl"),
        SIZES: str(folder / "sizes.json"),
    }


@dataclass(frozen=True)
class Recording:
    """The events of one pool's card."""

    policies: list[str]
    events: list[Event]
