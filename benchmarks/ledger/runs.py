"""The runs whose events are recorded. Tiny policies run on pools that have every shape of the recipes' pools."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from ledger import PLATFORM
from ledger.book import FILE, SIZES, read_events
from ledger.events import Event
from ledger.sizes import Sizes, write_sizes
from verl_mas.planning.load import Policy

HERE = Path(__file__).parent


@dataclass(frozen=True)
class Shape:
    """The settings that decide the order of the events on a card."""

    policies: int
    phases: bool
    param_offload: bool
    optimizer_offload: bool

    @classmethod
    def of(cls, policies: Mapping[str, Policy], *, phases: bool) -> Shape:
        """Return the shape of a pool. Its trained policies must have the same settings, because no recording has
        different settings on a pool."""
        found = {(one.param_offload, one.optimizer_offload) for one in policies.values() if one.trains}
        [(param, optimizer)] = found
        return cls(len(policies), phases and len(policies) > 1, param, optimizer)


# Run -> pool -> shape.
RUNS: dict[str, dict[str, Shape]] = {
    "one_and_three": {
        "alone": Shape(1, phases=False, param_offload=False, optimizer_offload=True),
        "three": Shape(3, phases=False, param_offload=True, optimizer_offload=True),
    },
    "two": {
        "together": Shape(2, phases=False, param_offload=True, optimizer_offload=True),
        "sliced": Shape(2, phases=True, param_offload=True, optimizer_offload=True),
    },
}


def names(pool: str, shape: Shape) -> list[str]:
    """Return the names of the policies on a pool."""
    return [f"{pool}_{i}" for i in range(shape.policies)]


def arguments(run: str) -> list[str]:
    """Return the further arguments of a recorded run. `execute` puts them after the arguments for the platform, the
    recipe, the data and the model."""
    pools = RUNS[run]
    policies = {name: pool for pool, shape in pools.items() for name in names(pool, shape)}
    return [
        *("+mas=team", "mas.workflow.name=Chain", f"mas.workflow.path={HERE}/team.py"),
        f"+mas.workflow.args.length={len(policies)}",
        *(f"+mas.pools.{pool}={_pool(shape)}" for pool, shape in pools.items()),
        "mas.policies={" + ",".join(f"{name}:{{pool:{pool}}}" for name, pool in policies.items()) + "}",
        "mas.agents={" + ",".join(f"agent_{i}:{{policy:{name}}}" for i, name in enumerate(policies)) + "}",
        # With these settings the plugin does not treat the platform as the CPU.
        *("~hydra.callbacks.verl_mas_platform", f"trainer.device={PLATFORM}"),
        # The recipes set this too. The parameters of policies that share a pool are offloaded by the trainer.
        "actor_rollout_ref.actor.fsdp_config.optimizer_offload=true",
        *("algorithm.adv_estimator=agent_grpo", "actor_rollout_ref.rollout.free_cache_engine=true"),
        *("data.train_batch_size=4", "data.max_prompt_length=128", "actor_rollout_ref.rollout.n=2"),
        *("actor_rollout_ref.actor.ppo_mini_batch_size=4", "mas.updates_per_step=2"),
        # A save also moves the model, so only the second of the two steps saves.
        *("trainer.total_training_steps=2", "trainer.save_freq=2", "trainer.test_freq=-1"),
    ]


def _pool(shape: Shape) -> str:
    return f"{{n_gpus_per_node:1,serving:{'phases' if shape.phases else 'together'}}}"


def environment(folder: Path, sizes: Sizes) -> dict[str, str]:
    """Return the environment of a run that writes its ledger to the folder."""
    write_sizes(folder / "sizes.pickle", sizes)
    return {
        "VERL_USE_EXTERNAL_MODULES": "ledger.hooks",
        "VERL_PLATFORM": PLATFORM,
        FILE: str(folder / "events.jsonl"),
        SIZES: str(folder / "sizes.pickle"),
    }


def recorded(folder: Path, run: str) -> dict[Shape, list[Event]]:
    """Read the events of every pool of a finished run. Numbers replace the names of the policies."""
    events = read_events(folder / "events.jsonl")
    return {shape: [_numbered(e, names(pool, shape)) for e in _of(pool, events)] for pool, shape in RUNS[run].items()}


def _of(pool: str, events: list[Event]) -> list[Event]:
    return [event for event in events if event.holder is None or event.holder.policy.startswith(f"{pool}_")]


def _numbered(event: Event, policies: list[str]) -> Event:
    if event.holder is None:
        return event
    return replace(event, holder=replace(event.holder, policy=str(policies.index(event.holder.policy))))
