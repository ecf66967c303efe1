"""The GPU recipes and their memory sizes, for the ledger and for the plan."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path

from ledger.runs import RUNS, Shape, names
from ledger.sizes import Sizes
from verl_mas.config.compose import compose
from verl_mas.config.placement import policies_on, time_sliced, used_pools
from verl_mas.config.run import Run
from verl_mas.engines.serving import resolve_serving
from verl_mas.planning.events import Pool
from verl_mas.planning.hardware import parse_gpus
from verl_mas.planning.known_models import known
from verl_mas.planning.load import Policy, read_policy
from verl_mas.planning.model import size_of

RECIPES = Path(__file__).parents[2] / "recipes"
PHASES, TOGETHER = (f"++mas.pools.shared.serving={way}" for way in ("phases", "together"))
# Prefixes of the names of recipe parts, and of recipes for the CPU.
NOT_FOR_GPUS = ("common", "roles", "laptop")
# Recipes with a frozen policy are skipped, because the recorded runs train all policies.
FROZEN = ("self_play/qwen3",)
# Recipes with engines on separate GPUs are skipped, because the recorded runs serve on the GPUs that they train on.
APART = ("math/shared_apart",)
COMMAND = re.compile(r"^# python -m verl\.trainer\.main_ppo (.+)$", re.MULTILINE)


def _variants() -> Iterator[tuple[str, tuple[str, ...]]]:
    for path in sorted(RECIPES.glob("*/*.yaml")):
        name = str(path.relative_to(RECIPES).with_suffix(""))
        if not path.stem.startswith(NOT_FOR_GPUS) and name not in (*FROZEN, *APART):
            yield name, tuple(COMMAND.findall(path.read_text())[0].split())


# Recipe for GPUs -> the command in its head.
VARIANTS = dict(_variants())
# A team that does not fit: two engines at the same time, each with verl's default of 0.5 and on two GPUs.
OVER = (
    *VARIANTS["plan_path/qwen3_roles"],
    TOGETHER,
    "actor_rollout_ref.rollout.gpu_memory_utilization=0.5",
    "actor_rollout_ref.rollout.tensor_model_parallel_size=2",
)
# Pool of a recorded run -> the command whose sizes are used while the run is recorded.
RECORDED = {
    "alone": VARIANTS["math/shared"],
    "three": VARIANTS["search/mixed"],
    "together": VARIANTS["math/separate_8b"],
    "sliced": (*VARIANTS["math/mixed"], PHASES, "actor_rollout_ref.rollout.gpu_memory_utilization=0.6"),
}


@dataclass(frozen=True)
class Team:
    """The policies of a run with one pool, numbered as in a recording."""

    shape: Shape
    sizes: Sizes

    def on(self, engine: str) -> Team:
        policies = {number: replace(policy, engine=engine) for number, policy in self.sizes.policies.items()}
        return replace(self, sizes=replace(self.sizes, policies=policies))

    def planned(self) -> dict[tuple[str, str | None], float]:
        """Return the plan's bytes by phase and policy. The policy is None where all engines serve together."""
        pool = Pool(list(self.sizes.policies.values()), self.sizes.card, phases=self.shape.phases)
        return {(event.phase, event.policy): event.total for event in pool.events()}


@lru_cache(maxsize=64)
def team(*arguments: str) -> Team:
    """Return the team of a command on GPUs of 80 GB."""
    run = resolve_serving(Run.of(compose(arguments)))
    [pool] = used_pools(run.mas)
    policies: dict[str, Policy] = {}
    for number, name in enumerate(policies_on(run.mas, pool)):
        fields = known(str(run.view(name).value("model.path")))
        assert fields is not None, f"the model of {name} is not in planning/known_models.py"
        policies[str(number)] = replace(read_policy(run, name, size_of(fields)), name=str(number))
    return Team(Shape.of(policies, phases=time_sliced(run.mas, pool)), Sizes(parse_gpus("8x80").card, policies))


def sizes_of(run: str, **changed: tuple[str, ...]) -> Sizes:
    """Return the sizes of a recorded run's policies, by their names in the run. `changed`: commands that replace those
    of RECORDED for some pools."""
    policies: dict[str, Policy] = {}
    for pool, shape in RUNS[run].items():
        chosen = team(*(changed.get(pool) or RECORDED[pool]))
        policies |= zip(names(pool, shape), chosen.sizes.policies.values(), strict=True)
    return Sizes(chosen.sizes.card, policies)
