"""The GPU recipes and the variants of their pages, as the ledger and the plan see them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import lru_cache

from ledger.runs import RUNS, Shape, names
from ledger.sizes import Sizes
from verl_mas.config.compose import compose
from verl_mas.config.load import load
from verl_mas.config.merge import policy_value
from verl_mas.config.placement import policies_on, time_sliced, used_pools
from verl_mas.planning.events import Pool
from verl_mas.planning.hardware import parse_gpus
from verl_mas.planning.known_models import known
from verl_mas.planning.load import Policy
from verl_mas.planning.model import size_of
from verl_mas.planning.reading import read_policy

MODEL = "actor_rollout_ref.model.path"
PHASES = "+mas.pools.shared.serving=phases"
PER_ROLE = (
    "mas.policies={planner: {}, executor: {}}",
    "mas.agents.planner.policy=planner",
    "mas.agents.executor.policy=executor",
)


def _variants() -> Iterator[tuple[str, tuple[str, ...]]]:
    large = (f"{MODEL}=Qwen/Qwen3-8B", "trainer.n_gpus_per_node=8")
    for recipe in ("math", "search"):
        for variant in ("shared", "separate", "mixed"):
            yield f"{recipe}/{variant}", (f"+recipe={recipe}/{variant}",)
    for variant in ("shared", "separate"):
        yield f"math/{variant}, 8B", (f"+recipe=math/{variant}", *large)
    for puzzle in ("plan_path", "sokoban", "sudoku"):
        recipe = ("+mas=planner_executor", f"+recipe={puzzle}/qwen3")
        yield f"{puzzle}/qwen3", recipe
        yield f"{puzzle}/qwen3, a policy per role", (*recipe, *PER_ROLE)
        yield f"{puzzle}/qwen3, a policy per role, 8B", (*recipe, *PER_ROLE, large[0])


VARIANTS = dict(_variants())
# What a policy per role had before the recipe set a fraction: verl's 0.5 each, on two GPUs per engine.
OVER = (
    *VARIANTS["plan_path/qwen3, a policy per role"],
    "actor_rollout_ref.rollout.gpu_memory_utilization=0.5",
    "actor_rollout_ref.rollout.tensor_model_parallel_size=2",
)
# The sizes of the recorded runs themselves, by pool.
RECORDED = {
    "alone": VARIANTS["math/shared"],
    "kept": VARIANTS["plan_path/qwen3"],
    "three": VARIANTS["search/mixed"],
    "together": VARIANTS["math/separate, 8B"],
    "sliced": (*VARIANTS["math/mixed"], PHASES, "actor_rollout_ref.rollout.gpu_memory_utilization=0.6"),
}


@dataclass(frozen=True)
class Team:
    """The policies of a run with one pool, numbered as in a recording."""

    shape: Shape
    sizes: Sizes

    def on(self, engine: str) -> Team:
        policies = {
            number: replace(policy, serving=replace(policy.serving, engine=engine))
            for number, policy in self.sizes.policies.items()
        }
        return replace(self, sizes=replace(self.sizes, policies=policies))

    def planned(self) -> dict[tuple[str, str], float]:
        """The plan's bytes by phase and policy."""
        pool = Pool(list(self.sizes.policies.values()), self.sizes.card, phases=self.shape.phases)
        return {(event.phase, event.policy): event.total for event in pool.events()}


@lru_cache(maxsize=64)
def team(*arguments: str) -> Team:
    """The team of a command on cards of 80 GB."""
    config = compose(arguments)
    mas = load(config.mas)
    [pool] = used_pools(mas)
    policies: dict[str, Policy] = {}
    for number, name in enumerate(policies_on(mas, pool)):
        fields = known(str(policy_value(config, mas.policies[name], "model.path")))
        assert fields is not None, f"the model of {name} is not in planning/known_models.py"
        policies[str(number)] = replace(read_policy(config, mas, name, size_of(fields)), name=str(number))
    return Team(Shape.of(policies, phases=time_sliced(mas, pool)), Sizes(parse_gpus("8x80").card, policies))


def sizes_of(run: str, **changed: tuple[str, ...]) -> Sizes:
    """Of a recorded run, by its own names. `changed`: the commands of other teams for some of its pools."""
    policies: dict[str, Policy] = {}
    for pool, shape in RUNS[run].items():
        chosen = team(*(changed.get(pool) or RECORDED[pool]))
        policies |= zip(names(pool, shape), chosen.sizes.policies.values(), strict=True)
    return Sizes(chosen.sizes.card, policies)
