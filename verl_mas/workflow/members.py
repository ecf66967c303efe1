"""The members of a team: every agent by name, with its role, policy and settings."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from verl_mas.config.schema import AgentSpec, PolicySpec, Sampling, SwapSpec
from verl_mas.errors import ConfigError, raise_all
from verl_mas.registry import nearest
from verl_mas.workflow.swap import check_swap, rotations
from verl_mas.workflow.task import Task

if TYPE_CHECKING:
    from verl_mas.workflow.base import Workflow

DECODING = ("temperature", "top_p", "top_k")
PENALTIES = ("repetition_penalty", "presence_penalty", "frequency_penalty")
INSTANCE = re.compile(r"(.+)_\d+")
NAME = re.compile(r"[A-Za-z][A-Za-z0-9_-]*")
# First parts of metric names that agents and policies cannot have.
RESERVED = {"session", "rows", "timing", "group", "padding"}


def instances(role: str, count: int) -> tuple[str, ...]:
    """The names of `count` agents of one role: `reasoner_0`, `reasoner_1`, ..."""
    return tuple(f"{role}_{number}" for number in range(count))


def nested(name: str, team: Workflow | type[Workflow] | Sequence[str]) -> tuple[str, ...]:
    """The names that a sub-team's agents have in the outer team, where `team.sub(name)` is the sub-team.

    `team` is the workflow of the sub-team, its class if it needs no arguments, or the names of its agents.
    """
    made = team() if isinstance(team, type) else team
    agents = made if isinstance(made, Sequence) else made.agents
    return tuple(f"{name}_{agent}" for agent in agents)


@dataclass(frozen=True)
class Member:
    name: str
    role: str
    spec: AgentSpec
    trainable: bool
    # The policies that it acts on in turn, each for `every` training steps (`mas.swap`); empty: its own at all times.
    rotation: Sequence[str] = ()
    every: int = 1

    @property
    def policies(self) -> Sequence[str]:
        """Every policy that it acts on, its own first."""
        return self.rotation or (self.spec.policy,)

    def policy(self, task: Task) -> str:
        """The policy that it acts on in a session of this task. It follows from the step, so a run that resumes needs
        no state. Training steps count from 1."""
        if task.validate:
            return self.spec.policy
        return self.policies[max(task.step - 1, 0) // self.every % len(self.policies)]

    def sampling(self, task: Task, act: Mapping[str, object]) -> dict[str, object]:
        """What this act changes in the sampling settings of its policy; the act overrides the agent."""
        spec = flat(self.spec.sampling)
        if task.validate:
            spec = {name: value for name, value in spec.items() if name not in DECODING}
            spec |= flat(self.spec.validation_sampling)
        return {**spec, **act}


def flat(sampling: Sampling) -> dict[str, object]:
    """The settings merged with those in `extra`, as an engine takes them."""
    return {**{name: value for name, value in sampling.items() if name != "extra"}, **sampling.get("extra", {})}


def members_of(
    agents: Sequence[str],
    specs: Mapping[str, AgentSpec],
    policies: Mapping[str, PolicySpec],
    swap: SwapSpec | None = None,
) -> dict[str, Member]:
    """Each agent has the settings under its own name, else those of its role, else the defaults."""
    raise_all(_wrong_agents(agents))
    roles = {name: role_of(name) for name in agents}
    raise_all(_unknown(specs, sorted({*roles, *roles.values()})))
    members = {}
    for name, role in roles.items():
        spec = specs.get(name) or specs.get(role) or AgentSpec()
        policy = policies.get(spec.policy, PolicySpec())
        trainable = spec.trainable and policy.is_trained
        members[name] = Member(name, spec.role or role, spec, trainable)
    raise_all(error for member in members.values() for error in _penalties(member))
    if swap is None or not swap.agents:
        return members
    own = {name: member.spec.policy for name, member in members.items()}
    raise_all(check_swap(swap, own, policies))
    rotated = {
        name: replace(members[name], rotation=rotation, every=swap.every)
        for name, rotation in rotations(swap, own).items()
    }
    return {**members, **rotated}


def wrong_names(noun: str, names: Iterable[str]) -> Iterator[ConfigError]:
    for name in names:
        if not NAME.fullmatch(name) or name in RESERVED:
            yield ConfigError(
                f"{noun} name {name!r}",
                rule="names are part of metric names, file names and actor names: a letter, then letters, "
                f"digits, '_' or '-', and none of {', '.join(sorted(RESERVED))}",
                fix=f"rename the {noun}",
            )


def _wrong_agents(agents: object) -> Iterator[ConfigError]:
    """What is wrong with the `agents` of a workflow's class, which may be anything."""
    if not isinstance(agents, list | tuple) or not all(isinstance(name, str) for name in agents):
        fix = f"agents = ({agents!r},)" if isinstance(agents, str) else 'agents = ("solver", "verifier")'
        yield ConfigError(f"agents = {agents!r}", rule="a workflow's agents are a tuple of names", fix=fix)
        return
    if not agents:
        yield ConfigError(
            f"agents = {agents!r}",
            rule="a workflow names at least one agent",
            fix='name them in its class: agents = ("solver", "verifier")',
        )
    yield from wrong_names("agent", dict.fromkeys(agents))
    for name in dict.fromkeys(agents):
        if agents.count(name) > 1:
            yield ConfigError(
                f"agents = {agents!r}", rule=f"every agent has one name; {name!r} is there twice", fix="rename one"
            )


def _unknown(specs: Iterable[str], known: list[str]) -> Iterator[ConfigError]:
    for name in specs:
        if name not in known:
            yield ConfigError(
                f"mas.agents.{name}",
                rule="mas.agents names agents or roles of the workflow",
                fix=nearest(name, known),
            )


def _penalties(member: Member) -> Iterator[ConfigError]:
    sampling = flat(member.spec.sampling)
    for setting in PENALTIES:
        if member.trainable and setting in sampling:
            yield ConfigError(
                f"mas.agents.{member.name}.sampling.{setting}={sampling[setting]}",
                rule="the trainer computes log-probs without penalties, so the ratio would be wrong",
                fix=f"remove it, or move it to mas.agents.{member.name}.validation_sampling",
            )


def role_of(agent: str) -> str:
    instance = INSTANCE.fullmatch(agent)
    return instance.group(1) if instance else agent
