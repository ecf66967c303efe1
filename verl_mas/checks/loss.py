"""Checks of what counts in the loss: `mas.loss`, `mas.filter`, and the correction of rows of older weights."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

from verl_mas.advantage import ESTIMATORS, AdvantageOptions, compute_advantages
from verl_mas.checks.estimators import rows
from verl_mas.checks.verl.combinations import combinations
from verl_mas.checks.verl.refusals import Problem
from verl_mas.config.merge import SECTION
from verl_mas.config.modes import THRESHOLD, Staleness
from verl_mas.config.run import CORRECTION, READERS, Run, View
from verl_mas.errors import ConfigError, ConfigWarning
from verl_mas.workflow.members import Member, flat


def check_filter(run: Run) -> Iterator[Problem]:
    if run.config.trainer.val_only:
        return
    name, by_score = str(run.config.algorithm.adv_estimator), run.mas.filter.drop and run.mas.filter.by == "score"
    across = by_score and name in ESTIMATORS and _across_tasks(name, AdvantageOptions.from_config(run.mas.advantage))
    yield from combinations("filter", run.config, mas=run.mas, across_tasks=across)


def _across_tasks(name: str, options: AdvantageOptions) -> bool:
    """Whether the estimator gives a row an advantage in a batch of two uniform tasks of different scores."""
    if ESTIMATORS[name].reads_running(options):
        return True
    import torch

    scores = torch.tensor([0.0, 0.0, 1.0, 1.0])
    batch = rows(["a"], {"a": "a"}, sessions=2, candidates=1)
    batch = replace(batch, scores=scores, team_reward=scores, local_reward=scores, penalty=scores)
    return bool(compute_advantages(name, batch, options).advantages.any())


# Rollout correction: of each trained policy, whether it has what it reads, and whether it is right.


# Settings of sampling that leave tokens out -> the value with which they do not.
TRUNCATING: Mapping[str, tuple[object, ...]] = {"top_p": (1, None), "top_k": (-1, 0, None), "min_p": (0, None)}


def check_correction(run: Run) -> Iterator[Problem]:
    stale = run.staleness
    for name in run.trained:
        view = run.view(name)
        yield from _log_probs(view)
        yield from _bypass(view)
        yield from _rejection(view)
        if stale and stale.warmup and not any(view.correction.get(key) for key in READERS):
            yield _uncorrected(name, stale)


def _log_probs(view: View) -> Iterator[ConfigError]:
    """What reads the engine's log-probs, which only exist if the rollout computes them."""
    if view.value("rollout.calculate_log_probs"):
        return
    found, mode, stale = view.correction, view.run.mode, view.run.staleness
    used = ", ".join(f"{_place(view, key)}={found[key]}" for key in READERS if found.get(key))
    if not used and mode and stale and stale.warmup:
        used = f"{mode.warmup_key}={stale.warmup:g}"
    if used:
        value = f"policy {view.name}: rollout.calculate_log_probs=False with {used}"
        rule = "the correction compares the engine's log-probs with the trainer's"
        yield ConfigError(value, rule=rule, fix=f"set {SECTION}.rollout.calculate_log_probs=True")


def _rejection(view: View) -> Iterator[ConfigError]:
    """verl reads these texts in the first update; here it reads them for one token."""
    option, threshold = (view.correction.get(key) for key in ("rollout_rs", "rollout_rs_threshold"))
    if not option:
        return
    import torch
    from verl.trainer.ppo.rollout_corr_helper import compute_rollout_rejection_mask

    try:
        compute_rollout_rejection_mask(torch.ones(1, 1), torch.ones(1, 1), option, threshold)
    except (ValueError, TypeError) as error:
        place = _place(view, "rollout_rs")
        value = f"policy {view.name}: {place}={option} with rollout_rs_threshold={threshold}"
        fix = "set rollout_rs=token_k1 rollout_rs_threshold=0.5_2.0, or remove both"
        yield ConfigError(value, rule=f"verl takes both in its update: {error}", fix=fix)


def _bypass(view: View) -> Iterator[ConfigError]:
    """verl's V1 trainer never applies the losses of its bypass mode."""
    found = view.correction
    if not found.get("bypass_mode"):
        return
    unread = {key: found.get(key) for key in ("rollout_is", "rollout_rs")}
    unread["loss_type"] = None if found.get("loss_type") == "ppo_clip" else found.get("loss_type")
    if given := {key: value for key, value in unread.items() if value}:
        yield ConfigError(
            f"policy {view.name}: {_place(view, 'bypass_mode')}=True with "
            + ", ".join(f"{key}={value}" for key, value in given.items()),
            rule="with it, the engine's log-probs are the old ones, and verl's V1 trainer reads nothing else of the "
            "section: the loss is clipped around the weights that wrote the text",
            fix=f"set {_place(view, 'bypass_mode')}=False (an asynchronous +mas/mode= after +recipe= does), or "
            + " ".join(f"{_place(view, key)}={'ppo_clip' if key == 'loss_type' else 'null'}" for key in given),
        )


def _uncorrected(name: str, stale: Staleness) -> Problem:
    value = f"policy {name}: rows of older weights without {CORRECTION}, {THRESHOLD}={stale.threshold}"
    why = "the loss is clipped around the weights of the step, which did not write the text"
    fix = f"set {CORRECTION}.rollout_is=token, or {CORRECTION}.bypass_mode=True"
    if stale.threshold is None or stale.threshold > 2:
        return ConfigError(value, rule=f"above 2 rows are corrected: {why}", fix=fix)
    return ConfigWarning(value, reason=why, fix=fix)


def check_truncation(run: Run, members: Mapping[str, Member]) -> Iterator[Problem]:
    """Sampling that leaves tokens out, where stale rows are corrected, or the engine's log-probs are the old ones."""
    stale, learning = run.staleness, set(run.trained)
    for agent, member in members.items():
        for policy in member.policies if member.trainable else ():
            correction = run.view(policy).correction if policy in learning else {}
            corrected = stale is not None and stale.warmup and any(correction.get(key) for key in READERS)
            if not corrected and not correction.get("bypass_mode"):
                continue
            for key, value in _truncated(run.view(policy), member):
                what = f"agent {agent} is trained with {key}={value:g}, and the rows of policy {policy} are corrected"
                rule = "engines give log-probs after tokens were left out, trainers before: every ratio of the two is "
                rule += "off by what was left out"
                fix = f"set ++mas.agents.{member.role}.sampling.{key}={TRUNCATING[key][0]}; in validation, "
                fix += f"++mas.agents.{member.role}.validation_sampling.{key} has no such limit"
                if corrected:
                    yield ConfigError(what, rule=rule, fix=fix)
                else:
                    place = _place(run.view(policy), "bypass_mode")
                    yield ConfigWarning(what.replace("are corrected", f"have {place}=True"), rule, fix)


def _truncated(view: View, member: Member) -> Iterator[tuple[str, float]]:
    own = flat(member.spec.sampling)
    for key, harmless in TRUNCATING.items():
        value = own.get(key)
        if value is None and key != "min_p":
            value = view.value(f"rollout.{key}")
        if isinstance(value, int | float) and value not in harmless:
            yield key, value


def _place(view: View, key: str) -> str:
    """Where the user has set it."""
    own = key in view.spec.rollout_correction
    return f"mas.policies.{view.name}.rollout_correction.{key}" if own else f"{CORRECTION}.{key}"
