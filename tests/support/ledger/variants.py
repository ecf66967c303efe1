"""The GPU recipes and their documented variants, as the ledger sees them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from ledger.runs import Shape
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
PER_ROLE = (
    "mas.policies={planner: {}, executor: {}}",
    "mas.agents.planner.policy=planner",
    "mas.agents.executor.policy=executor",
)
LARGE = (f"{MODEL}=Qwen/Qwen3-8B", "trainer.n_gpus_per_node=8")


def _variants() -> Iterator[tuple[str, tuple[str, ...]]]:
    for recipe in ("math", "search"):
        for variant in ("shared", "separate", "mixed"):
            yield f"{recipe}/{variant}", (f"+recipe={recipe}/{variant}",)
    for variant in ("shared", "separate"):
        yield f"math/{variant} 8B", (f"+recipe=math/{variant}", *LARGE)
    for puzzle in ("plan_path", "sokoban", "sudoku"):
        recipe = ("+mas=planner_executor", f"+recipe={puzzle}/qwen3")
        yield f"{puzzle}", recipe
        yield f"{puzzle} per role", (*recipe, *PER_ROLE)


VARIANTS = dict(_variants())


@dataclass(frozen=True)
class Team:
    """The policies of one pool of a composed recipe, numbered as in a recording."""

    shape: Shape
    sizes: Sizes

    @property
    def planned(self) -> dict[tuple[str, str], float]:
        """The plan's bytes by phase and policy."""
        pool = Pool(list(self.sizes.policies.values()), self.sizes.card, phases=self.shape.phases)
        return {(event.phase, event.policy): event.total for event in pool.events()}


def team(*arguments: str, gpus: str = "8x80") -> Team:
    """Of a run with one pool."""
    config = compose(arguments)
    mas = load(config.mas)
    [pool] = used_pools(mas)
    policies: dict[str, Policy] = {}
    for number, name in enumerate(policies_on(mas, pool)):
        fields = known(policy_value(config, mas.policies[name], "model.path"))
        assert fields is not None, name
        policies[str(number)] = replace(read_policy(config, mas, name, size_of(fields)), name=str(number))
    return Team(Shape.of(policies, phases=time_sliced(mas, pool)), Sizes(parse_gpus(gpus).card, policies))
