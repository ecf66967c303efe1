"""Checks of a team's configuration before Ray starts."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from difflib import get_close_matches
from functools import partial

from omegaconf import DictConfig

from verl_mas.advantage import ESTIMATORS, options_for
from verl_mas.checks.adapters import check_adapters
from verl_mas.checks.apart import check_apart
from verl_mas.checks.correction import check_correction, check_truncation
from verl_mas.checks.engine_options import check_unread_options
from verl_mas.checks.engines import check_engines
from verl_mas.checks.learning import check_learning
from verl_mas.checks.loss import check_filter, check_loss
from verl_mas.checks.modes import check_modes, check_phases
from verl_mas.checks.policies import (
    check_batch_sizes,
    check_remotes,
    check_untrained,
    check_views,
    check_zero_advantage,
)
from verl_mas.checks.pools import check_memory, check_pools, check_replicas, check_team_resources
from verl_mas.checks.refusals import Problem, Refusals, raised_by, user_code
from verl_mas.checks.sampling import check_sampling
from verl_mas.checks.sessions import check_limits, check_serving, check_sessions
from verl_mas.checks.settings import check_override_keys, check_override_values, check_values
from verl_mas.checks.snapshots import check_snapshots
from verl_mas.checks.together import check_together
from verl_mas.checks.trainer import check_settings, check_trainable, wants_critic
from verl_mas.config.adapters import adapters
from verl_mas.config.merge import SECTION
from verl_mas.config.run import Run
from verl_mas.config.schema import MasConfig
from verl_mas.engines.serving import settled
from verl_mas.errors import ConfigError, ConfigWarning
from verl_mas.registry import nearest
from verl_mas.user_code import load_module, load_user_code
from verl_mas.workflow.base import Workflow, agents_of, find, resolve
from verl_mas.workflow.commit import COMMIT_RULES
from verl_mas.workflow.members import Member, wrong_names

# Estimator of verl -> the nearest one that compares the rows of one agent.
PER_AGENT = {
    "grpo": "agent_grpo",
    "grpo_vectorized": "agent_grpo",
    "rloo": "agent_rloo",
    "rloo_vectorized": "agent_rloo",
    "reinforce_plus_plus": "agent_reinforce_pp",
    "reinforce_plus_plus_baseline": "agent_reinforce_pp",
    **dict.fromkeys(("gdpo", "gpg", "grpo_passk", "opo", "remax"), "agent_grpo"),
    **dict.fromkeys(("optimal_token_baseline", "tir_optimal_token_baseline"), "agent_grpo"),
}


def validate(config: DictConfig) -> MasConfig:
    """The team, or every error of its configuration, each with value, rule and fix."""
    found = Refusals()
    run, _ = check_config(config, found)
    found.raise_all()
    assert run is not None
    return run.mas


def check_config(config: DictConfig, found: Refusals) -> tuple[Run | None, bool]:
    """The run, or None if a value of it or of verl cannot be read, and whether its workflow can be used; errors are
    collected in `found`."""
    found.of(check_settings(config))
    sound = found.of(check_values(config))
    run = found.result(lambda: Run.of(config))
    if run is None:
        return None, False
    mas = run.mas
    found.of(check_names(mas), check_trainable(run), check_remotes(mas))
    found.of(check_snapshots(run), check_adapters(run))
    known = found.of(check_override_keys(run))
    if not found.of(check_override_values(run)) or not sound:
        return None, False  # Other checks calculate with these values.
    team = None
    if found.of(raised_by(load_user_code, mas, seconds=mas.workflow.check_timeout_s)):
        found.of(raised_by(COMMIT_RULES.find, mas.branch.commit, "mas.branch.commit"))
        if found.of(check_estimator(run)):
            found.of(check_filter(run))
        team = found.result(partial(_made, mas))
    if team:
        found.of(check_workflow(run, *team))
    found.of(check_sampling(run))
    found.of(check_modes(run), check_correction(run))
    if found.of(check_pools(mas)) and found.of(check_apart(run)):
        run = found.result(partial(settled, run)) or run
        found.of(check_replicas(run), check_team_resources(run), check_memory(run))
        found.of(check_engines(run))
        found.of(check_batch_sizes(run), check_together(run), check_zero_advantage(run))
        found.of(check_loss(run), check_phases(run))
        found.of(
            check_unread_options(run),
            check_untrained(mas),
            check_sessions(run),
            check_limits(mas),
            check_serving(mas),
        )
        if known:
            found.of(check_views(run))
    return run, team is not None


def check_names(mas: MasConfig) -> Iterator[ConfigError]:
    for noun, names in (("agent", mas.agents), ("policy", mas.policies), ("pool", mas.pools)):
        yield from wrong_names(noun, names)


def check_estimator(run: Run) -> Iterator[ConfigError]:
    name = str(run.config.algorithm.adv_estimator)
    if wants_critic(run.config):
        return  # Refused by check_settings.
    if name in PER_AGENT:
        yield ConfigError(
            f"algorithm.adv_estimator={name}",
            rule="a team's rows are compared per agent; verl's estimators compare all rows of a prompt",
            fix=f"set algorithm.adv_estimator={PER_AGENT[name]}",
        )
    elif name not in ESTIMATORS and (close := get_close_matches(name, PER_AGENT, n=1)):
        yield ConfigError(
            f"algorithm.adv_estimator={name}",
            rule="a team's estimators are per agent",
            fix=f"did you mean {PER_AGENT[close[0]]!r}? known: {', '.join(ESTIMATORS)}",
        )
    else:
        options_for(name, run.mas.advantage)


def _made(mas: MasConfig) -> tuple[Workflow, Mapping[str, Member]]:
    with user_code(mas.workflow.check_timeout_s):
        return resolve(mas.workflow), agents_of(mas)


def check_workflow(run: Run, workflow: Workflow, members: Mapping[str, Member]) -> Iterator[Problem]:
    mas = run.mas
    yield from _unused_file(mas)
    yield from _assignment(mas, members)
    yield from _own_rewards(mas, workflow)
    yield from check_learning(run, workflow, members)
    yield from check_truncation(run, members)
    if run.config.algorithm.adv_estimator == "at_grpo":
        yield from _branches(run, workflow)
    yield from _main_agent(mas, members)


def _main_agent(mas: MasConfig, members: Mapping[str, Member]) -> Iterator[ConfigError]:
    main = mas.advantage.get("main")
    by_role = mas.advantage.get("by") == "role"
    known = {member.role for member in members.values()} if by_role else set(members)
    if main is not None and main not in known:
        yield ConfigError(
            f"mas.advantage.main={main}",
            rule=f"it names the {'role of the ' if by_role else ''}agent that calls the others",
            fix=nearest(str(main), list(known)),
        )


def _unused_file(mas: MasConfig) -> Iterator[ConfigWarning]:
    spec = mas.workflow
    if spec.path is None or spec.name in vars(load_module(spec.path, "mas.workflow.path")):
        return
    if (home := find(spec.name, spec.path).__module__).startswith("verl_mas.workflows."):
        yield ConfigWarning(
            f"mas.workflow.path={spec.path} with mas.workflow.name={spec.name}",
            f"{spec.name} is {home}, so the file is loaded and not used",
            "set mas.workflow.name to a class of the file, or mas.workflow.path=null",
        )


def _assignment(mas: MasConfig, members: Mapping[str, Member]) -> Iterator[ConfigError]:
    for name, member in members.items():
        policy = member.spec.policy
        if policy not in mas.policies:
            yield ConfigError(
                f"agent {name} acts on policy {policy}",
                rule="an agent acts on one of mas.policies",
                fix=f"set ++mas.agents.{member.role}.policy; {nearest(policy, list(mas.policies))}",
            )
    used = {member.spec.policy for member in members.values()}
    for name in mas.policies:
        # A base is used by its adapters.
        if name not in used and not adapters(mas, name):
            yield ConfigError(
                f"mas.policies.{name} is used by no agent",
                rule="every policy costs memory, so every policy has an agent",
                fix=f"set ++mas.agents.<agent>.policy={name}, or remove the policy",
            )


def _own_rewards(mas: MasConfig, workflow: Workflow) -> Iterator[ConfigError]:
    for name in workflow.own_rewards:
        if getattr(workflow, name) and not mas.reward.local:
            yield ConfigError(
                f"mas.workflow.args.{name}={getattr(workflow, name)} with mas.reward.local={mas.reward.local}",
                rule="mas.reward.local is the weight of an act's own reward (preset dr_mas: 0)",
                fix=f"set mas.reward.preset=sum, or ++mas.workflow.args.{name}=0",
            )


def _branches(run: Run, workflow: Workflow) -> Iterator[ConfigError]:
    if not workflow.branches:
        yield ConfigError(
            f"algorithm.adv_estimator=at_grpo with mas.workflow.name={run.mas.workflow.name}, which does not branch",
            rule="at_grpo compares the candidates of one act",
            fix="set algorithm.adv_estimator=agent_grpo; or, in a workflow of yours that calls `branch`, set "
            "`branches = True` in its class",
        )
    elif run.mas.branch.k == 1 and run.config[SECTION].rollout.n == 1:
        yield ConfigError(
            "algorithm.adv_estimator=at_grpo with mas.branch.k=1 and one session per task",
            rule="at_grpo compares the candidates of one act or, without branching, the sessions of one task",
            fix=f"set mas.branch.k=4, or {SECTION}.rollout.n=8 for the control without branching",
        )
