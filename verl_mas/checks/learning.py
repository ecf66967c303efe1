"""Whether a run of these settings can learn: rows to compare, agents that are trained, rewards, and acts to spend."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from verl_mas.advantage import ESTIMATORS
from verl_mas.checks.verl.refusals import Problem
from verl_mas.config.merge import SECTION, trained
from verl_mas.config.run import Run
from verl_mas.config.schema import MasConfig, SwapSpec
from verl_mas.errors import ConfigError, ConfigWarning
from verl_mas.workflow.base import Workflow
from verl_mas.workflow.members import DECODING, Member, flat

LONGEST_WAIT_S = 3600


def check_learning(run: Run, workflow: Workflow, members: Mapping[str, Member]) -> Iterator[Problem]:
    yield from _acts(run.mas, workflow, members)
    if run.config.trainer.val_only:
        return
    # at_grpo has a rule of its own.
    name = str(run.config.algorithm.adv_estimator)
    branching = workflow.branches and run.mas.branch.k > 1
    alone = run.config[SECTION].rollout.n == 1 and not branching and run.mas.advantage.get("shrinkage") is None
    if alone and name in ESTIMATORS and ESTIMATORS[name].compares_sessions:
        yield ConfigError(
            f"{SECTION}.rollout.n=1 with algorithm.adv_estimator={name}",
            rule="the sessions of one task are compared with each other; with one, an agent that acts once has "
            "advantage 0 and never learns, and one that acts again is compared with its own other acts",
            fix=f"set {SECTION}.rollout.n=8, or algorithm.adv_estimator=agent_rae or agent_reinforce_pp, which compare "
            "all tasks",
        )
    yield from _trained_agents(run.mas, members)
    yield from _rewards(run, workflow)
    yield from _played_on(run, workflow)
    # mhgpo takes rows of one branch for a rollout of their own, which the candidates of several acts are not.
    counts = {"weighting": ("per_session", "per_invocation"), "baseline": ("leave_one_out",)}
    chosen = [
        f"{name}={run.mas.advantage.get(name)}"
        for name, those in counts.items()
        if run.mas.advantage.get(name) in those
    ]
    plain = workflow.branches and run.mas.branch.k > 1 and not workflow.forks
    if run.config.algorithm.adv_estimator == "mhgpo" and plain and chosen:
        yield ConfigWarning(
            f"algorithm.adv_estimator=mhgpo with mas.advantage.{chosen[0]} and "
            f"mas.workflow.name={run.mas.workflow.name}, which branches and does not fork",
            reason="candidates of different acts that have the same number would count as one rollout",
            fix="fork (teams that can: ++mas.workflow.args.fork=first), or set algorithm.adv_estimator=agent_grpo",
        )
    # Settings with which every reply to a prompt is the same, so that nothing is compared.
    for name, member in members.items():
        if not member.trainable or member.spec.policy not in run.mas.policies:
            continue
        view, own = run.view(member.spec.policy), flat(member.spec.sampling)
        drawn = {key: own.get(key, view.value(f"rollout.{key}")) for key in DECODING}
        if drawn["temperature"] == 0 or drawn["top_k"] == 1 or own.get("seed") is not None:
            why = f"seed={own['seed']}" if own.get("seed") is not None else ""
            why = why or ("temperature=0" if drawn["temperature"] == 0 else "top_k=1")
            reason = "every reply to one prompt is then the same, so its sessions differ in nothing"
            fix = f"set it in ++mas.agents.{member.role}.validation_sampling, or in {SECTION}.rollout.val_kwargs"
            yield ConfigWarning(f"agent {name} is trained with {why}", reason=reason, fix=fix)
    yield from _validated(run, members)
    swap, steps = run.mas.swap, run.config.trainer.get("total_training_steps")
    if not swap.agents and swap.every != SwapSpec().every:
        value = f"mas.swap.every={swap.every} without mas.swap.agents"
        reason = "no agents exchange their policies"
        yield ConfigWarning(value, reason=reason, fix="set mas.swap.agents=[<agent>,<agent>], or remove mas.swap.every")
    elif swap.agents and steps is not None and swap.every >= steps:
        value = f"mas.swap.every={swap.every} with trainer.total_training_steps={steps}"
        reason = "training ends before the first exchange"
        yield ConfigWarning(value, reason=reason, fix=f"set mas.swap.every to less than {steps}")
    yield from _fused_kernels(run, members)


def _trained_agents(mas: MasConfig, members: Mapping[str, Member]) -> Iterator[Problem]:
    learning = {policy for member in members.values() if member.trainable for policy in member.policies}
    idle = [name for name in trained(mas) if name not in learning]
    if idle and not learning:
        value = "mas.agents: every agent has trainable=false"
        rule = "training needs an agent whose rows are trained on"
        yield ConfigError(value, rule=rule, fix="set ++mas.agents.<agent>.trainable=true, or trainer.val_only=True")
        return
    for name in idle:
        value = f"mas.policies.{name}: every agent on it has trainable=false"
        reason = "the policy is never updated, and still uses memory for its optimiser"
        yield ConfigWarning(value, reason=reason, fix=f"set ++mas.policies.{name}.trainable=false")


def _acts(mas: MasConfig, workflow: Workflow, members: Mapping[str, Member]) -> Iterator[Problem]:
    limit, faults = mas.faults.max_acts, mas.faults
    for name, k in (("k", mas.branch.k), ("validation_k", mas.branch.validation_k)):
        if k > 1 and not workflow.branches:
            yield ConfigWarning(
                f"mas.branch.{name}={k} with mas.workflow.name={mas.workflow.name}, which does not branch",
                reason="only a workflow that calls `branch` samples candidates",
                fix=f"set mas.branch.{name}=1; or, in a workflow of yours that calls `branch`, set `branches = True` "
                "in its class",
            )
        if k > limit:
            value = f"mas.branch.{name}={k} with mas.faults.max_acts={limit}"
            rule = "every candidate is an act, and a session ends at mas.faults.max_acts"
            yield ConfigError(value, rule=rule, fix=f"lower mas.branch.{name}, or raise mas.faults.max_acts")
    needed = max(workflow.most_acts(k) or 0 for k in (mas.branch.k, mas.branch.validation_k))
    if needed > limit:
        yield ConfigError(
            f"mas.faults.max_acts={limit} with mas.workflow.name={mas.workflow.name}, whose longest session has "
            f"{needed} acts",
            rule="a session with more acts than mas.faults.max_acts fails, and is not trained on",
            fix=f"set mas.faults.max_acts={needed}, or lower mas.branch or mas.workflow.args",
        )
    if len(members) > limit:
        value = f"mas.faults.max_acts={limit} with {len(members)} agents"
        reason = "a session in which all of them act is over before it ends, and is dropped"
        yield ConfigWarning(value, reason=reason, fix="raise mas.faults.max_acts")
    wait = faults.backoff_s * 2.0 ** max(0, faults.retries - 1) if faults.retries else 0.0
    if wait > LONGEST_WAIT_S:
        value = f"mas.faults.retries={faults.retries} with mas.faults.backoff_s={faults.backoff_s:g}"
        reason = f"the wait doubles with each retry: before the last one it is {wait:.3g} seconds"
        yield ConfigWarning(value, reason=reason, fix="lower mas.faults.retries or mas.faults.backoff_s")


def _rewards(run: Run, workflow: Workflow) -> Iterator[Problem]:
    team, local = run.mas.reward.team, run.mas.reward.local
    penalties = run.mas.reward.penalty_on != "none" and any(spec.format_penalty for spec in run.mas.agents.values())
    if not team and not local and not penalties:
        yield ConfigError(
            f"mas.reward.team={team}, mas.reward.local={local}",
            rule="a row's score is the team's reward and the act's own, each times its weight: with both 0 every score "
            "is 0 and nothing is learned",
            fix="set mas.reward.team=1",
        )
    elif not team:
        reason = "whether a session succeeds does not count, only what the workflow gives single acts"
        yield ConfigWarning(f"mas.reward.team={team}", reason=reason, fix="set mas.reward.team=1")
    for name, weight in (("team", team), ("local", local)):
        if weight is not None and weight < 0:
            reason = "a negative weight trains for the lowest reward"
            yield ConfigWarning(f"mas.reward.{name}={weight}", reason=reason, fix=f"set mas.reward.{name}={-weight:g}")
    if (
        run.config.algorithm.adv_estimator == "at_grpo"
        and workflow.branches
        and run.mas.branch.k > 1
        and workflow.sparse
    ):
        value = f"algorithm.adv_estimator=at_grpo with mas.branch.k={run.mas.branch.k} and rewards at the end only"
        reason = "the candidates of an act that does not end the session all have one reward, so it learns nothing"
        fix = "give every candidate a reward of its own (shipped teams: ++mas.workflow.args.reward=dense)"
        yield ConfigWarning(value, reason=reason, fix=fix)


def _played_on(run: Run, workflow: Workflow) -> Iterator[Problem]:
    """Candidates that the workflow plays on to the end."""
    if not (workflow.probes or workflow.forks):
        return
    if run.mas.branch.k == 1:
        yield ConfigWarning(
            f"mas.branch.k=1 with mas.workflow.name={run.mas.workflow.name}, whose arguments play candidates on to the "
            "end",
            reason="an act without other candidates has nothing to compare, so nothing is played on",
            fix="set mas.branch.k=4",
        )
    name = str(run.config.algorithm.adv_estimator)
    if workflow.forks and name in _UNFORKED:
        value = f"algorithm.adv_estimator={name} with mas.workflow.name={run.mas.workflow.name}, which forks"
        fix = "set algorithm.adv_estimator=mhgpo or agent_grpo, which compare all acts of an agent on a task"
        yield ConfigError(value, rule=f"{name} {_UNFORKED[name]}", fix=fix)


# Estimators to which the forks of a session would look like one course of it.
_UNFORKED = {
    "at_grpo": "compares candidates of one prompt, and the forks of a session read different prompts",
    "agent_gigpo": "discounts by the acts that follow in the session, and each of its forks has acts of its own",
    "hierarchical_grpo": "tells the invocations of a session by their numbers, and its forks number them alike",
}


def _validated(run: Run, members: Mapping[str, Member]) -> Iterator[ConfigWarning]:
    """verl's validation is greedy unless its temperature is set, whatever `do_sample` is."""
    kwargs = run.config[SECTION].rollout.val_kwargs
    wish = f"n={kwargs.n}" if kwargs.n > 1 else "do_sample=true" if kwargs.do_sample else ""
    temperatures = {
        flat(member.spec.validation_sampling).get(
            "temperature", run.view(member.spec.policy).value("rollout.val_kwargs.temperature")
        )
        for member in members.values()
        if member.trainable and member.spec.policy in run.mas.policies
    }
    if wish and temperatures == {0}:
        value = f"{SECTION}.rollout.val_kwargs.temperature=0 with val_kwargs.{wish}"
        reason = "temperature 0 is greedy: every validation session of a task is then the same"
        fix = f"set {SECTION}.rollout.val_kwargs.temperature=1.0, or leave val_kwargs.{wish} out"
        yield ConfigWarning(value, reason=reason, fix=fix)


def _fused_kernels(run: Run, members: Mapping[str, Member]) -> Iterator[ConfigError]:
    """verl's fused kernels take one temperature for all rows of a policy."""
    for name in run.trained:
        view = run.view(name)
        if not view.value("model.use_fused_kernels"):
            continue
        common = view.value("rollout.temperature")
        temperatures = {
            member.spec.sampling.get("temperature", common): agent
            for agent, member in members.items()
            if member.trainable and name in member.policies
        }
        if len(temperatures) > 1:
            each = " and ".join(f"{value:g} (agent {agent})" for value, agent in temperatures.items())
            yield ConfigError(
                f"policy {name}: model.use_fused_kernels=True with the temperatures {each}",
                rule="verl's fused kernels score all rows of a policy at one temperature",
                fix=f"set {SECTION}.model.use_fused_kernels=False, or the same temperature for these agents",
            )
