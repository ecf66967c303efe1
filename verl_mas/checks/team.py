"""Checks of a team's configuration before Ray starts."""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import fields
from functools import partial
from random import Random

from omegaconf import DictConfig

from verl_mas.advantage import ESTIMATORS, options_for
from verl_mas.advantage.record import COLUMNS, PARTS
from verl_mas.checks.adapters import check_adapters
from verl_mas.checks.learning import check_learning
from verl_mas.checks.loss import check_correction, check_filter, check_truncation
from verl_mas.checks.machine import check_resources
from verl_mas.checks.policies import (
    check_override_keys,
    check_override_values,
    check_specs,
    check_unread_options,
    check_views,
)
from verl_mas.checks.pools import check_apart, check_memory, check_pools, check_replicas
from verl_mas.checks.trainer import check_phases, check_settings, check_together, check_trainable, wants_critic
from verl_mas.checks.verl.combinations import combinations
from verl_mas.checks.verl.model_folder import model_number
from verl_mas.checks.verl.refusals import Problem, Refusals, raised_by, user_code
from verl_mas.checks.verl.settings import check_values
from verl_mas.config.adapters import adapters
from verl_mas.config.placement import served_on, used_pools
from verl_mas.config.run import Run
from verl_mas.config.sampling import INT32, Sampling
from verl_mas.config.schema import AgentSpec, MasConfig
from verl_mas.config.values import settable
from verl_mas.engines.sampling import SET_BY_US, SET_FOR_EVERY_REQUEST, engine_errors, mistyped, sampling_errors
from verl_mas.engines.serving import settled
from verl_mas.errors import ConfigError, ConfigWarning, raise_all
from verl_mas.execution.executor import Execution
from verl_mas.registry import closest, nearest
from verl_mas.row import Act
from verl_mas.user_code import load_module, load_user_code
from verl_mas.workflow.base import Workflow, agents_of, find, resolve
from verl_mas.workflow.commit import COMMIT_RULES
from verl_mas.workflow.members import Member, role_of, wrong_names
from verl_mas.workflow.team import Team
from verl_mas.workflows.world import PAST, WorldTeam

# Checks of snapshots: policies with the weights that a trained policy had at an earlier step.


def check_snapshots(run: Run) -> Iterator[Problem]:
    for name, spec in run.mas.policies.items():
        if (snapshot := spec.snapshot) is None:
            continue
        facts = {"own": spec, "policy": name, "first": snapshot.first or snapshot.every}
        if snapshot.of in run.trained:
            source = run.view(snapshot.of)
            model = source.section("model")
            yield from combinations("snapshots", run.view(name).config, "", base=source.spec, source=model, **facts)
        else:
            of = run.mas.policies.get(snapshot.of)
            kind = "is not there" if of is None else "is a snapshot" if of.snapshot else "is not trained"
            value = f"mas.policies.{name}.snapshot.of={snapshot.of}, which {kind}"
            rule = "a snapshot takes the weights of a policy that this run trains"
            yield ConfigError(value, rule=rule, fix=nearest(snapshot.of, run.trained))


def _check_commit(mas: MasConfig) -> None:
    rule, k = COMMIT_RULES.find(mas.branch.commit, "mas.branch.commit"), min(mas.branch.k, 8)
    for scores in ([float(place) for place in range(k)], [float(-place) for place in range(k)]):
        with user_code(mas.workflow.check_timeout_s):
            chosen = rule.choose(scores, mas.branch.temperature, Random(0))
        if chosen not in range(k):
            value = f"mas.branch.commit={mas.branch.commit} chooses {chosen!r} of {k} candidates"
            raise ConfigError(value, rule="the places of candidates begin with 0", fix="correct the commit rule")


# Sampling settings: their names, by the engine or endpoint that gets them, and their ranges.


def check_sampling(run: Run) -> Iterator[Problem]:
    """The sampling settings of the agents."""
    for name, spec in run.mas.agents.items():
        policy = run.mas.policies.get(spec.policy)
        if policy is None:
            continue  # Refused where agents are assigned to policies.
        rollout = None if policy.remote else run.view(spec.policy).section("rollout")
        for path, given in _settings(spec, f"mas.agents.{name}"):
            if rollout is None:
                # An endpoint may have settings that no other has, so an unknown name is at most a warning.
                shared = settable(Sampling).keys() | SET_FOR_EVERY_REQUEST | SET_BY_US.keys()
                yield from sampling_errors({key: given[key] for key in given if key in shared}, None, path)
                for key in given.keys() - shared:
                    if meant := mistyped(key):
                        reason = "it is sent as it is; an endpoint refuses or ignores a misspelled setting"
                        yield ConfigWarning(
                            f"{path}.{key}={given[key]!r}", reason=reason, fix=f"did you mean {meant!r}?"
                        )
            else:
                yield from sampling_errors(given, str(rollout.name), path)
                yield from engine_errors(given, rollout, path)
                tokens = model_number(run.view(spec.policy).section("model"), "vocab_size") or INT32
                stops = given.get("stop_token_ids")
                if absent := [token for token in stops if token >= tokens] if isinstance(stops, list) else []:
                    value = f"{path}.stop_token_ids={absent}, of a model with {tokens} tokens"
                    yield ConfigWarning(value, "no reply has such a token", "take the ids of this model's tokenizer")
        for section, own in (("sampling", spec.sampling), ("validation_sampling", spec.validation_sampling)):
            for twice in own.keys() & own.get("extra", {}).keys():
                value = f"mas.agents.{name}.{section}.extra.{twice}, and {twice}"
                yield ConfigError(value, rule="extra would replace the setting", fix="leave one of them out")
        facts = {"trained": policy.is_trained, "remote": policy.remote}
        yield from combinations("agents", run.config, "", agent=name, **facts)


def _settings(spec: AgentSpec, agent: str) -> Iterator[tuple[str, dict[str, object]]]:
    """The places of an agent's sampling settings, and what is there."""
    for section in ("sampling", "validation_sampling"):
        own = dict(getattr(spec, section))
        extra = own.pop("extra", {})
        yield f"{agent}.{section}", own
        yield f"{agent}.{section}.extra", extra


def check_serving(run: Run) -> Iterator[Problem]:
    for pool in used_pools(run.mas):
        yield from combinations("pools", run.config, mas=run.mas, pool=pool, served=len(served_on(run.mas, pool)))


# Estimator of verl -> the nearest one that compares the rows of one agent.
PER_AGENT = {
    **dict.fromkeys(("rloo", "rloo_vectorized"), "agent_rloo"),
    **dict.fromkeys(("reinforce_plus_plus", "reinforce_plus_plus_baseline"), "agent_reinforce_pp"),
    **dict.fromkeys(("grpo", "grpo_vectorized", "gdpo", "gpg", "grpo_passk", "opo", "remax"), "agent_grpo"),
    **dict.fromkeys(("optimal_token_baseline", "tir_optimal_token_baseline"), "agent_grpo"),
}


def validate(config: DictConfig) -> MasConfig:
    """The team, or every error of its configuration, each with value, rule and fix."""
    refusals = Refusals()
    run, _ = check_config(config, refusals)
    raise_all(refusals.errors)
    assert run is not None
    return run.mas


def check_config(config: DictConfig, refusals: Refusals) -> tuple[Run | None, bool]:
    """The run, or None if a value of it or of verl cannot be read, and whether its workflow can be used; errors are
    collected in `refusals`."""
    refusals.of(check_settings(config))
    sound = refusals.of(check_values(config))
    run = refusals.result(lambda: Run.of(config))
    if run is None:
        return None, False
    mas = run.mas
    refusals.of(check_names(mas), check_system_prompts(mas), check_trainable(run), check_specs(run))
    refusals.of(check_snapshots(run), check_adapters(run))
    known = refusals.of(check_override_keys(run))
    if not refusals.of(check_override_values(run)) or not sound:
        return None, False  # Other checks calculate with these values.
    team = None
    if refusals.of(raised_by(load_user_code, mas, seconds=mas.workflow.check_timeout_s)):
        refusals.of(raised_by(_check_commit, mas))
        if refusals.of(check_estimator(run)):
            refusals.of(check_filter(run))
        team = refusals.result(partial(_made, mas))
    if team:
        refusals.of(check_workflow(run, *team))
    refusals.of(check_sampling(run))
    refusals.of(check_together(run), check_correction(run))
    if refusals.of(check_pools(mas)):
        refusals.of(check_apart(run))
        run = refusals.result(partial(settled, run)) or run
        refusals.of(check_replicas(run), check_resources(run), check_memory(run))
        refusals.of(check_phases(run))
        refusals.of(check_unread_options(run), check_serving(run))
        if known:
            refusals.of(check_views(run))
    return run, team is not None


def check_names(mas: MasConfig) -> Iterator[ConfigError]:
    for noun, names in (("agent", mas.agents), ("policy", mas.policies), ("pool", mas.pools)):
        yield from wrong_names(noun, names)


def check_system_prompts(mas: MasConfig) -> Iterator[ConfigWarning]:
    for name, spec in mas.agents.items():
        if (text := spec.system_prompt) and (text.startswith("@") or os.path.isfile(text)):
            value, reason = f"mas.agents.{name}.system_prompt={text}", "it is the text itself, and no file is read"
            yield ConfigWarning(value, reason, "write the text in its place")
        for gap in re.findall(r"(?<![\w\\$}])\{\w+\}", text or ""):
            value, reason = f"mas.agents.{name}.system_prompt has {gap}", "nothing fills it: the agent reads the braces"
            yield ConfigWarning(value, reason, "write the text in its place")


def check_estimator(run: Run) -> Iterator[ConfigError]:
    name = str(run.config.algorithm.adv_estimator)
    if wants_critic(run.config):
        return  # Refused by check_settings.
    if name in PER_AGENT:
        value = f"algorithm.adv_estimator={name}"
        rule = "a team's rows are compared per agent; verl's estimators compare all rows of a prompt"
        yield ConfigError(value, rule=rule, fix=f"set algorithm.adv_estimator={PER_AGENT[name]}")
    elif name not in ESTIMATORS and (close := closest(name, PER_AGENT)):
        fix = f"did you mean {PER_AGENT[close]!r}? known: {', '.join(ESTIMATORS)}"
        yield ConfigError(f"algorithm.adv_estimator={name}", rule="a team's estimators are per agent", fix=fix)
    else:
        options_for(name, run.mas.advantage)
        columns = [*COLUMNS, *PARTS, *(tag.name for tag in fields(Act))]
        for column in (column for column in ESTIMATORS[name].needs if column not in columns):
            fix = f"correct its needs; {nearest(column, columns)}"
            yield ConfigError(f"estimator {name} needs {column!r}", rule="it is a column of the rows", fix=fix)


def _made(mas: MasConfig) -> tuple[Workflow, Mapping[str, Member]]:
    with user_code(mas.workflow.check_timeout_s):
        return resolve(mas.workflow), agents_of(mas)


def check_workflow(run: Run, workflow: Workflow, members: Mapping[str, Member]) -> Iterator[Problem]:
    mas = run.mas
    yield from _unused_file(mas)
    yield from check_assignment(mas, members)
    for name in (name for name in members if hasattr(Team, name)):
        yield ConfigError(f"an agent {name}", rule=f"team.{name} is a method of a team", fix="rename the agent")
    for name in members:
        role = role_of(name)
        if name != role and name in mas.agents and role in mas.agents:
            value, reason = f"mas.agents.{name}", f"it has its own settings in place of those of mas.agents.{role}"
            yield ConfigWarning(value, reason, f"write those that it shares into mas.agents.{name}, too")
    for name in workflow.own_rewards:
        yield from combinations("own_rewards", run.config, mas=mas, argument=name, paid=getattr(workflow, name))
    for (role, policy), acting in Counter((one.role, one.spec.policy) for one in members.values()).items():
        own = mas.policies.get(policy)
        yield from combinations("acting", run.config, own=own, policy=policy, role=role, acting=acting)
    yield from check_learning(run, workflow, members)
    yield from check_truncation(run, members)
    execution = getattr(workflow, "execution", None)
    if isinstance(execution, Execution) and execution.limits.seconds > mas.faults.session_timeout_s:
        value = f"mas.workflow.args.execution.cpu_s={execution.cpu_s:g} with mas.faults.session_timeout_s"
        reason = f"a program may take {execution.limits.seconds:g} s, and a session {mas.faults.session_timeout_s:g} s"
        yield ConfigWarning(value, reason, "lower cpu_s, which is in seconds")
    for name, member in members.items():
        own = mas.policies.get(member.spec.policy)
        if isinstance(workflow, WorldTeam) and member.role == PAST and own and own.is_trained:
            value = f"agent {name} acts on {member.spec.policy}, which is trained"
            reason = "with opponent=past it is an earlier self, and here it learns beside the others"
            yield ConfigWarning(value, reason, "give it a policy that is a snapshot: mas.policies.<name>.snapshot")
    main = mas.advantage.get("main")
    by_role = mas.advantage.get("by") == "role"
    known = {member.role for member in members.values()} if by_role else set(members)
    if main is not None and main not in known:
        rule = f"it names the {'role of the ' if by_role else ''}agent that calls the others"
        yield ConfigError(f"mas.advantage.main={main}", rule=rule, fix=nearest(str(main), list(known)))


def _unused_file(mas: MasConfig) -> Iterator[ConfigWarning]:
    spec = mas.workflow
    if spec.path is None or spec.name in vars(load_module(spec.path, "mas.workflow.path")):
        return
    if (home := find(spec.name, spec.path).__module__).startswith("verl_mas.workflows."):
        value = f"mas.workflow.path={spec.path} with mas.workflow.name={spec.name}"
        reason = f"{spec.name} is {home}, so the file is loaded and not used"
        yield ConfigWarning(value, reason, "set mas.workflow.name to a class of the file, or mas.workflow.path=null")


def check_assignment(mas: MasConfig, members: Mapping[str, Member]) -> Iterator[ConfigError]:
    for name, member in members.items():
        policy = member.spec.policy
        if policy not in mas.policies:
            rule = "an agent acts on one of mas.policies"
            fix = f"set ++mas.agents.{member.role}.policy; {nearest(policy, list(mas.policies))}"
            yield ConfigError(f"agent {name} acts on policy {policy}", rule=rule, fix=fix)
    used = {member.spec.policy for member in members.values()}
    for name in mas.policies:
        # A base is used by its adapters.
        if name not in used and not adapters(mas, name):
            value = f"mas.policies.{name} is used by no agent"
            rule = "every policy costs memory, so every policy has an agent"
            yield ConfigError(value, rule=rule, fix=f"set ++mas.agents.<agent>.policy={name}, or remove the policy")
