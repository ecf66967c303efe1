"""Policies and agents: their names, the policies that agents act on, snapshots, endpoints and sampling."""

from collections.abc import Iterator

from verl_mas.checks.examined import ExaminedRun
from verl_mas.checks.rules import Problem, rule
from verl_mas.config.adapters import adapters
from verl_mas.config.merge import SECTION
from verl_mas.config.registry import nearest
from verl_mas.config.sampling import Sampling
from verl_mas.config.schema import AgentSpec
from verl_mas.config.values import settable
from verl_mas.engines.sampling import SET_BY_US, SET_FOR_EVERY_REQUEST, engine_errors, mistyped, sampling_errors
from verl_mas.errors import ConfigError, ConfigWarning
from verl_mas.gateway.endpoints.endpoint import check_endpoint
from verl_mas.workflow.agents import wrong_names
from verl_mas.workflow.team import Team


@rule(seen="commit 7097aae9: an agent named like a method of a team", team=True)
def names(run: ExaminedRun) -> Iterator[ConfigError]:
    """Agents, policies and pools have names that can be part of settings and paths."""
    for noun, given in (("agent", run.mas.agents), ("policy", run.mas.policies), ("pool", run.mas.pools)):
        yield from wrong_names(noun, given)
    for name in (name for name in run.agents if hasattr(Team, name)):
        yield ConfigError(f"an agent {name}", rule=f"team.{name} is a method of a team", fix="rename the agent")


@rule(seen="commit e6ea2ae8: agents on policies that were not there", team=True)
def acting(run: ExaminedRun) -> Iterator[ConfigError]:
    """An agent acts on a policy that exists, and a policy has an agent."""
    policies = run.mas.policies
    for name, agent in run.agents.items():
        if (policy := agent.spec.policy) not in policies:
            fix = f"set ++mas.agents.{agent.role}.policy; {nearest(policy, list(policies))}"
            value, rule = f"agent {name} acts on policy {policy}", "an agent acts on one of mas.policies"
            yield ConfigError(value, rule=rule, fix=fix)
    used = {policy for agent in run.agents.values() for policy in (*agent.policies, agent.spec.policy)}
    for name in (name for name in policies if name not in used and not adapters(run.mas, name)):
        rule, fix = "every policy costs memory", f"set ++mas.agents.<agent>.policy={name}, or remove the policy"
        yield ConfigError(f"mas.policies.{name} is used by no agent", rule=rule, fix=fix)
    main, by_role = run.mas.advantage.get("main"), run.mas.advantage.get("by") == "role"
    known = [agent.role if by_role else name for name, agent in run.agents.items()]
    if main is not None and main not in known:
        rule = "it names the agent, or with by=role the role, that calls the others"
        yield ConfigError(f"mas.advantage.main={main}", rule=rule, fix=nearest(str(main), known))


@rule(seen="docs/write/self-play.md", team=True)
def snapshots(run: ExaminedRun) -> Iterator[ConfigError]:
    """A snapshot has the model and the whole weights of its policy."""
    for name, spec in run.mas.policies.items():
        if (snapshot := spec.snapshot) is None:
            continue
        value = f"mas.policies.{name}.snapshot.of={snapshot.of}"
        view = run.view(snapshot.of)
        if view.get("model.lora_rank") and not view.get("model.lora.merge"):
            rule, fix = "the trainer merges the adapter for it", f"set {SECTION}.model.lora.merge=True"
            yield ConfigError(f"{value}, which has an adapter", rule=rule, fix=fix)
        if (path := run.view(name).get("model.path")) != view.get("model.path"):
            rule = f"a snapshot starts with the model of its policy, {view.get('model.path')}"
            yield ConfigError(f"{value} with model.path={path}", rule=rule, fix="remove its overrides of model")


@rule(seen="Alibaba-NLP/ZeroSearch#24, TideDra/lmm-r1#30", team=True)
def endpoints(run: ExaminedRun) -> Iterator[Problem]:
    """The endpoint of a remote policy has an address, and its key is in the environment."""
    for name, spec in run.mas.policies.items():
        if spec.remote:
            yield from check_endpoint(spec.remote.base_url, spec.remote.api_key_env, f"mas.policies.{name}.remote.")


@rule(seen="verl#2588, verl#4773", team=True)
def sampling(run: ExaminedRun) -> Iterator[Problem]:
    """Engines and endpoints accept the sampling settings of their agents."""
    for name, spec in run.mas.agents.items():
        policy = run.mas.policies.get(spec.policy)
        for path, given in _settings(spec, f"mas.agents.{name}") if policy else ():
            if policy and policy.remote is None:
                view = run.view(spec.policy)
                yield from sampling_errors(given, view.engine, path)
                yield from engine_errors(given, view.section("rollout"), path)
                continue
            # An endpoint may have settings that we do not know, so an unknown name is at most a warning.
            shared = settable(Sampling).keys() | SET_FOR_EVERY_REQUEST | SET_BY_US.keys()
            yield from sampling_errors({key: given[key] for key in given if key in shared}, None, path)
            for key in (key for key in given if key not in shared and mistyped(key)):
                reason, fix = "an endpoint refuses or ignores a misspelt setting", f"did you mean {mistyped(key)!r}?"
                yield ConfigWarning(f"{path}.{key}={given[key]!r}", reason, fix)


def _settings(spec: AgentSpec, agent: str) -> Iterator[tuple[str, dict[str, object]]]:
    """Yield each section of an agent's sampling settings: its full name, and its settings."""
    for section in ("sampling", "validation_sampling"):
        own = dict(getattr(spec, section))
        extra = own.pop("extra", {})
        yield f"{agent}.{section}", own
        yield f"{agent}.{section}.extra", extra
