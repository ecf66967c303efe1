"""The agents of a team by name, each with its role, policy and settings (`ResolvedAgent`)."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from verl_mas.config.registry import nearest
from verl_mas.config.sampling import Sampling
from verl_mas.config.schema import AgentSpec, PolicySpec, SwapSpec
from verl_mas.errors import ConfigError, raise_all
from verl_mas.workflow.task import Task

DECODING = ("temperature", "top_p", "top_k")
PENALTIES = ("repetition_penalty", "presence_penalty", "frequency_penalty")
GRAMMARS = ("structured_outputs", "json_schema", "regex", "ebnf", "structural_tag")  # settings of vLLM and SGLang
INSTANCE = re.compile(r"(.+)_\d+")
NAME = re.compile(r"[A-Za-z][A-Za-z0-9_-]*")
# Names of TransferQueue's folder in a checkpoint: our name, and verl's name. We save the queue under our name, because
# verl would load a folder with verl's name while it loads the weights.
QUEUE, QUEUE_OF_VERL = "queue", "transfer_queue"
# Names that agents and policies cannot have, because metric names begin with these names, or folders of checkpoints
# have these names.
RESERVED = {"session", "rows", "timing", "group", "padding", QUEUE, QUEUE_OF_VERL}
SWAP = "mas.swap.agents"
# Sections whose overrides must be equal for exchanged policies. The checks of an agent read only its own policy, and
# their result must also hold for the other policies.
ALIKE = ("model", "rollout")


def instances(role: str, count: int) -> tuple[str, ...]:
    """Return the names of `count` agents of one role: `reasoner_0`, `reasoner_1`, ..."""
    return tuple(f"{role}_{number}" for number in range(count))


@dataclass(frozen=True)
class ResolvedAgent:
    name: str
    role: str
    spec: AgentSpec
    trainable: bool
    # Policies on which the agent acts in turn, each for `every` training steps (`mas.swap`). Empty if it always acts on
    # its own policy.
    rotation: Sequence[str] = ()
    every: int = 1

    @property
    def policies(self) -> Sequence[str]:
        """All policies on which the agent acts, with its own policy first."""
        return self.rotation or (self.spec.policy,)

    def policy(self, task: Task) -> str:
        """Return the policy on which the agent acts in a session of this task. It is computed from the training step,
        which counts from 1, so a resumed run needs no saved state."""
        if task.validate:
            return self.spec.policy
        return self.policies[max(task.step - 1, 0) // self.every % len(self.policies)]

    def sampling(self, task: Task, act: Mapping[str, object]) -> dict[str, object]:
        """Merge the sampling settings of the agent and of this act; the act overrides the agent."""
        spec = flat(self.spec.sampling)
        if task.validate:
            spec = {name: value for name, value in spec.items() if name not in DECODING}
            spec |= flat(self.spec.validation_sampling)
        return {**spec, **act}


def flat(sampling: Sampling) -> dict[str, object]:
    """Merge the settings in `extra` into the other settings, because engines take one flat mapping."""
    return {**{name: value for name, value in sampling.items() if name != "extra"}, **sampling.get("extra", {})}


def resolve_agents(
    agents: Sequence[str],
    specs: Mapping[str, AgentSpec],
    policies: Mapping[str, PolicySpec],
    swap: SwapSpec | None = None,
) -> dict[str, ResolvedAgent]:
    """Resolve the agents. An agent gets the settings under its own name, or else the settings of its role, or else the
    defaults."""
    raise_all(_wrong_agents(agents))
    roles = {name: role_of(name) for name in agents}
    known = sorted({*roles, *roles.values()})
    rule = "mas.agents names agents or roles of the workflow"
    raise_all(ConfigError(f"mas.agents.{n}", rule=rule, fix=nearest(n, known)) for n in specs if n not in known)
    found = {}
    for name, role in roles.items():
        spec = specs.get(name) or specs.get(role) or AgentSpec()
        policy = policies.get(spec.policy, PolicySpec())
        trainable = spec.trainable and policy.is_trained
        found[name] = ResolvedAgent(name, spec.role or role, spec, trainable)
    raise_all(error for agent in found.values() if agent.trainable for error in _penalties(agent))
    if swap is None or not swap.agents:
        return found
    own = {name: agent.spec.policy for name, agent in found.items()}
    raise_all(_check_swap(swap, own, policies))
    policies_used = [own[name] for name in swap.agents]
    for place, name in enumerate(swap.agents):
        # At each exchange, every agent takes the policy of the next agent.
        rotation = (*policies_used[place:], *policies_used[:place])
        found[name] = replace(found[name], rotation=rotation, every=swap.every)
    return found


def _penalties(agent: ResolvedAgent) -> Iterator[ConfigError]:
    rule = "the trainer computes log-probs without penalties and grammars, so its gradient would be wrong"
    fix = f"remove it, or move it to mas.agents.{agent.name}.validation_sampling"
    for setting, value in flat(agent.spec.sampling).items():
        if setting in PENALTIES + GRAMMARS:
            yield ConfigError(f"mas.agents.{agent.name}.sampling.{setting}={value}", rule=rule, fix=fix)


def wrong_names(noun: str, names: Collection[str]) -> Iterator[ConfigError]:
    rule = "names are part of metric names, file names and actor names: a letter, then letters, digits, '_' or '-', "
    rule += f"none of {', '.join(sorted(RESERVED))}, and no two alike but for case, as not every disk tells them apart"
    alike = Counter(name.lower() for name in names)
    for name in names:
        if not NAME.fullmatch(name) or name.lower() in RESERVED or alike[name.lower()] > 1:
            yield ConfigError(f"{noun} name {name!r}", rule=rule, fix=f"rename the {noun}")


def _wrong_agents(agents: object) -> Iterator[ConfigError]:
    """Check the `agents` of a workflow class, which the user may have set to a value of any type."""
    if not isinstance(agents, list | tuple) or not all(isinstance(name, str) for name in agents):
        fix = f"agents = ({agents!r},)" if isinstance(agents, str) else 'agents = ("solver", "verifier")'
        yield ConfigError(
            f"agents = {agents!r}", rule="agents are a tuple of names; a tuple of one name needs a comma", fix=fix
        )
        return
    if not agents:
        value = f"agents = {agents!r}"
        rule = "a workflow names at least one agent"
        yield ConfigError(value, rule=rule, fix='name them in its class: agents = ("solver", "verifier")')
    yield from wrong_names("agent", dict.fromkeys(agents))
    for name in dict.fromkeys(agents):
        if agents.count(name) > 1:
            rule = f"every agent has a different name; {name!r} is there twice"
            yield ConfigError(f"agents = {agents!r}", rule=rule, fix="rename one")


def role_of(agent: str) -> str:
    instance = INSTANCE.fullmatch(agent)
    return instance.group(1) if instance else agent


def _check_swap(swap: SwapSpec, own: Mapping[str, str], policies: Mapping[str, PolicySpec]) -> Iterator[ConfigError]:
    """Check the agents that exchange policies. `own` maps every agent of the workflow to its configured policy."""
    value = f"{SWAP}=[{','.join(swap.agents)}]"
    unknown = [name for name in swap.agents if name not in own]
    for name in unknown:
        rule = "agents of the workflow exchange policies; a role is not an agent"
        yield ConfigError(f"{value}: there is no agent {name}", rule=rule, fix=nearest(name, list(own)))
    if unknown:
        return
    if len(set(swap.agents)) != len(swap.agents) or len(swap.agents) < 2:
        yield ConfigError(value, rule="two different agents, or more, exchange policies", fix=f"name them in {SWAP}")
        return
    used = [own[name] for name in swap.agents]
    if len(set(used)) != len(used):
        each = ", ".join(f"{name} on {own[name]}" for name in swap.agents)
        sections = ", ".join(f"llm{i}: {{}}" for i in range(len(used)))
        assigned = " ".join(f"++mas.agents.{name}.policy=llm{i}" for i, name in enumerate(swap.agents))
        fix = f"give each a policy: 'mas.policies={{{sections}}}' {assigned}"
        yield ConfigError(f"{value}: {each}", rule="agents that share a policy have nothing to exchange", fix=fix)
        return
    yield from _different(value, {name: policies[name] for name in used if name in policies})


def _different(value: str, policies: Mapping[str, PolicySpec]) -> Iterator[ConfigError]:
    """Check that the exchanged policies are trained, and have the same model and engine. Unknown policies are skipped,
    because the check of the agents' policies refuses them."""
    rule = "exchanged policies are trained in this run, so that each learns in every role"
    for name, spec in policies.items():
        if not spec.is_trained:
            kind = "remote" if spec.remote else "a snapshot" if spec.snapshot else "frozen"
            what = f"{value}: the policy {name} is {kind}"
            fix = f"train it (++mas.policies.{name}.trainable=true, no remote), or set {SWAP}=[]"
            yield ConfigError(what, rule=rule, fix=fix)
    first = next(iter(policies), "")
    rule = "exchanged policies are copies of one model on one engine; they may differ in pool and optimiser"
    for name, spec in policies.items():
        for section in ALIKE:
            if spec.overrides.get(section) != policies[first].overrides.get(section):
                what = f"{value}: the overrides of {first} and {name} differ in {section}"
                fix = f"set {section} for all policies: actor_rollout_ref.{section}.<setting>=..."
                yield ConfigError(what, rule=rule, fix=fix)
