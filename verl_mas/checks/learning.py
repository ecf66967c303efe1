"""Whether a run of these settings can learn: rows to compare, agents that are trained, rewards, and acts to spend."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from verl_mas.advantage import ESTIMATORS
from verl_mas.checks.verl.combinations import combinations
from verl_mas.checks.verl.refusals import Problem
from verl_mas.config.merge import SECTION, trained
from verl_mas.config.run import Run
from verl_mas.config.schema import MasConfig
from verl_mas.errors import ConfigError, ConfigWarning
from verl_mas.workflow.base import Workflow
from verl_mas.workflow.members import DECODING, Member, flat

LONGEST_WAIT_S = 3600


def check_learning(run: Run, workflow: Workflow, members: Mapping[str, Member]) -> Iterator[Problem]:
    yield from combinations("workflow", run.config, mas=run.mas, workflow=workflow, agents=len(members))
    yield from _acts(run.mas, workflow)
    if run.config.trainer.val_only:
        return
    mas, branching = run.mas, workflow.branches and run.mas.branch.k > 1
    penalised = mas.reward.penalty_on != "none" and any(spec.format_penalty for spec in mas.agents.values())
    yield from combinations(
        "learning",
        run.config,
        mas=mas,
        workflow=workflow,
        estimator=ESTIMATORS[name] if (name := str(run.config.algorithm.adv_estimator)) in ESTIMATORS else None,
        candidates=mas.branch.k if branching else 1,
        penalties=penalised,
        plays_on=workflow.branches and bool(workflow.probes or workflow.forks),
    )
    yield from _trained_agents(run.mas, members)
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


def _acts(mas: MasConfig, workflow: Workflow) -> Iterator[Problem]:
    limit, faults = mas.faults.max_acts, mas.faults
    needed = max(workflow.most_acts(k) or 0 for k in (mas.branch.k, mas.branch.validation_k))
    if needed > limit:
        yield ConfigError(
            f"mas.faults.max_acts={limit} with mas.workflow.name={mas.workflow.name}, whose longest session has "
            f"{needed} acts",
            rule="a session with more acts than mas.faults.max_acts fails, and is not trained on",
            fix=f"set mas.faults.max_acts={needed}, or lower mas.branch or mas.workflow.args",
        )
    wait = faults.backoff_s * 2.0 ** max(0, faults.retries - 1) if faults.retries else 0.0
    if wait > LONGEST_WAIT_S:
        value = f"mas.faults.retries={faults.retries} with mas.faults.backoff_s={faults.backoff_s:g}"
        reason = f"the wait doubles with each retry: before the last one it is {wait:.3g} seconds"
        yield ConfigWarning(value, reason=reason, fix="lower mas.faults.retries or mas.faults.backoff_s")


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
