"""Agents that exchange their policies during training: `mas.swap`, the role exchange of CORY."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from verl_mas.config.schema import PolicySpec, SwapSpec
from verl_mas.errors import ConfigError
from verl_mas.registry import nearest

SETTING = "mas.swap.agents"
# The overrides that every check of an agent with its policy reads.
ALIKE = ("model", "rollout")


def rotations(swap: SwapSpec, own: Mapping[str, str]) -> dict[str, Sequence[str]]:
    """The policies of each agent in the order of its turns: at every exchange it takes that of the next agent."""
    policies = [own[name] for name in swap.agents]
    return {name: (*policies[i:], *policies[:i]) for i, name in enumerate(swap.agents)}


def check_swap(swap: SwapSpec, own: Mapping[str, str], policies: Mapping[str, PolicySpec]) -> Iterator[ConfigError]:
    """`own`: the configured policy of every agent of the workflow."""
    value = f"{SETTING}=[{','.join(swap.agents)}]"
    unknown = [name for name in swap.agents if name not in own]
    for name in unknown:
        yield ConfigError(
            f"{value}: there is no agent {name}",
            rule="agents of the workflow exchange policies; a role is not an agent",
            fix=nearest(name, list(own)),
        )
    if unknown:
        return
    if len(set(swap.agents)) != len(swap.agents) or len(swap.agents) < 2:
        yield ConfigError(value, rule="two different agents, or more, exchange policies", fix=f"name them in {SETTING}")
        return
    used = [own[name] for name in swap.agents]
    if len(set(used)) != len(used):
        each = ", ".join(f"{name} on {own[name]}" for name in swap.agents)
        yield ConfigError(
            f"{value}: {each}",
            rule="agents that share a policy have nothing to exchange",
            fix="give each a policy: 'mas.policies={"
            + ", ".join(f"llm{i}: {{}}" for i in range(len(used)))
            + "}' "
            + " ".join(f"++mas.agents.{name}.policy=llm{i}" for i, name in enumerate(swap.agents)),
        )
        return
    yield from _different(value, {name: policies[name] for name in used if name in policies})


def _different(value: str, policies: Mapping[str, PolicySpec]) -> Iterator[ConfigError]:
    """An unknown policy is refused where agents are assigned to policies."""
    for name, spec in policies.items():
        if spec.remote is not None or not spec.trainable:
            yield ConfigError(
                f"{value}: the policy {name} is {'remote' if spec.remote else 'frozen'}",
                rule="policies that are exchanged are trained here, so that each learns in every place",
                fix=f"train it (++mas.policies.{name}.trainable=true, no remote), or set {SETTING}=[]",
            )
    first = next(iter(policies), "")
    for name, spec in policies.items():
        for section in ALIKE:
            if spec.overrides.get(section) != policies[first].overrides.get(section):
                yield ConfigError(
                    f"{value}: the overrides of {first} and {name} differ in {section}",
                    rule="exchanged policies are copies of one model on one engine; they may differ in pool and "
                    "optimiser",
                    fix=f"set {section} for all policies: actor_rollout_ref.{section}.<setting>=...",
                )
