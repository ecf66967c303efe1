"""Requirements of asynchronous modes, and of engines on GPUs of their own: docs/train/async.md has the reasons."""

from collections.abc import Iterator, Mapping
from itertools import chain
from typing import TypeAlias

from verl_mas.checks.examined import ExaminedRun, setting, stated
from verl_mas.checks.rules import Problem, rule
from verl_mas.config.merge import SECTION
from verl_mas.config.modes import KEY, SEPARATE, THRESHOLD
from verl_mas.config.placement import local_policies, time_sliced, used_pools
from verl_mas.config.run import CORRECTION, READERS, View
from verl_mas.engines.platform import DEVICE as CPU
from verl_mas.engines.serving import MOST, serving
from verl_mas.errors import ConfigError, ConfigWarning

Wanted: TypeAlias = Mapping[str, tuple[object, str]]
# Settings of verl that must have one value for a team -> this value, and the reason.
OF_TEAM: Wanted = {
    "trainer.use_v1": (True, "teams need verl's V1 trainer"),
    "distillation.enabled": (False, "a teacher is not supported for a team"),
}
WITHOUT_CRITICS: Wanted = {"trainer.critic_warmup": (0, "no critic is warmed up, so no step leaves the policies out")}
WITH_CRITICS: Wanted = {
    "critic.enable": (True, "gae reads the values of a critic"),
    "critic.model.lora_rank": (0, "critics are trained with whole weights; none has been run with an adapter"),
    "algorithm.use_pf_ppo": (False, "with gae, a team trains on the rows as they were sampled"),
}
HYBRID: Wanted = {f"{SECTION}.hybrid_engine": (True, "policies train and serve on the same GPUs")}
# Settings for which any other value would make an asynchronous trainer hang, or train on other rows than intended.
ASYNCHRONOUS: Wanted = {
    "trainer.v1.sampler.custom_sampler.path": (None, "the team chooses the oldest complete tasks for a step"),
    "skip.rollout_tq.enable": (False, "tasks are dispatched and trained on in different steps"),
    f"{SECTION}.rollout.disaggregation.enabled": (False, "verl stops and resumes whole engines, not pairs of them"),
}
APART: Wanted = {
    "trainer.v1.separate_async.parameter_sync_step": (1, "weights are sent after every step"),
    "trainer.v1.separate_async.hybrid_rollout.enable_switch": (False, "it lets one policy use the training's GPUs"),
}
STORAGE = "transfer_queue.backend.SimpleStorage.total_storage_size"


@rule(seen="verl's own scripts of distillation with +mas=solver_verifier; docs/train/async.md", team=True)
def settings_of_team(run: ExaminedRun) -> Iterator[ConfigError]:
    """Some settings of verl must have one value for a team, and an asynchronous mode adds more such settings."""
    assert run.mode
    tables = [OF_TEAM, WITH_CRITICS if run.critics else WITHOUT_CRITICS, APART if run.mode is SEPARATE else HYBRID]
    tables += [ASYNCHRONOUS] if run.mode.asynchronous else []
    for key, (value, why) in chain.from_iterable(table.items() for table in tables):
        if (given := run.get(key)) not in (None, value):
            fix = f"set {key}={'null' if value is None else value}"
            yield ConfigError(f"{key}={given}", rule=f"{why} ({KEY}={run.mode.name})", fix=fix)


@rule(seen="commit 93f105e2, docs/train/async.md", team=True)
def stale_enough(run: ExaminedRun) -> Iterator[ConfigError]:
    """The staleness threshold allows for tasks that are dispatched some steps ahead of the training."""
    stale, mode, total = run.staleness, run.mode, run.config.trainer.total_training_steps
    if stale is None or mode is None or not stale.warmup:
        return
    if stale.threshold is None or stale.threshold < stale.least:
        rule = f"tasks are {stale.warmup:g} steps ahead, so a group is of up to {stale.least} versions of the weights"
        yield ConfigError(f"{THRESHOLD}={stale.threshold}", rule=rule, fix=f"set {THRESHOLD}={stale.least}")
    if total and stale.warmup >= total:
        rule = "all tasks of the run would be dispatched before its first step"
        value = f"{mode.warmup_key}={stale.warmup:g} with trainer.total_training_steps={total}"
        yield ConfigError(value, rule=rule, fix=f"set {mode.warmup_key}=1")


@rule(seen="commit 93f105e2, docs/train/async.md", team=True)
def rows_stored(run: ExaminedRun) -> ConfigError | None:
    """The storage is large enough for the rows of all steps in flight."""
    size, batches = run.get(STORAGE), run.staleness.least if run.staleness else 1
    needed = batches * run.sessions_per_step
    if not size or size >= needed:
        return None
    rule = f"up to {batches} steps are in flight, each of {run.sessions_per_step} sessions and at least as many rows"
    return ConfigError(f"{STORAGE}={size}", rule=rule, fix="set it to null: the storage then grows as needed")


@rule(seen="verl#2953, docs/train/async.md", team=True, of="learning")
def corrected(run: ExaminedRun, view: View) -> Problem | None:
    """The loss corrects for rows that were sampled with older weights."""
    stale = run.staleness
    if stale is None or not stale.warmup or any(view.correction.get(key) for key in READERS):
        return None
    value = f"policy {view.name}: rows of older weights without {CORRECTION}, {THRESHOLD}={stale.threshold}"
    why = "the loss is clipped around the weights of the step, which did not write the text"
    fix = f"set {CORRECTION}.rollout_is=token, or {CORRECTION}.bypass_mode=True"
    far = stale.threshold is None or stale.threshold > 2
    return ConfigError(value, rule=why, fix=fix) if far else ConfigWarning(value, why, fix)


@rule(seen="commit 93f105e2, docs/train/async.md", team=True)
def awake_together(run: ExaminedRun) -> Iterator[ConfigError]:
    """Engines of an asynchronous mode are awake all the time."""
    for pool in used_pools(run.mas) if run.mode and run.mode.asynchronous else ():
        if run.asked.mas.pools[pool].serving == "phases" or time_sliced(run.mas, pool):
            value = f"mas.pools.{pool}.serving={run.asked.mas.pools[pool].serving}: {serving(run.asked, pool).reason}"
            rule = "a phase ends only when no request runs, and here requests run during the training"
            fix = f"set ++mas.pools.{pool}.serving=together with memory fractions that add up to at most {MOST:g}"
            yield ConfigError(value, rule=rule, fix=f"{fix}, or a pool for each policy")


@rule(seen="commit 93f105e2, docs/train/async.md", team=True)
def engines_apart(run: ExaminedRun) -> Iterator[ConfigError]:
    """Mode separate_async serves policies on GPUs without training; other modes serve them where they are trained."""
    apart = run.mode is SEPARATE
    training = {run.mas.policies[name].pool for name in run.trained if not run.mas.policies[name].adapter_of}
    for name in local_policies(run.mas):
        spec, serves = run.mas.policies[name], run.mas.policies[name].engines or run.mas.policies[name].pool
        if apart and serves in training:
            value, rule = f"mas.policies.{name} is served on pool {serves}", "engines never free GPUs for training"
            fix = f"set ++mas.policies.{name}.engines=serve ++mas.pools.serve.n_gpus_per_node=1, or another pool"
            yield ConfigError(value, rule=rule, fix=fix)
        if not apart and spec.engines:
            value, fix = f"mas.policies.{name}.engines={spec.engines}", "remove it, or add +mas/mode=separate_async"
            yield ConfigError(value, rule="policies serve where they train", fix=fix)
        if apart and (spec.adapter_of or spec.snapshot):
            value = f"mas.policies.{name}.{'adapter_of' if spec.adapter_of else 'snapshot'} with {KEY}={SEPARATE.name}"
            rule = "the training sends whole weights, and only to a policy's own engines"
            yield ConfigError(value, rule=rule, fix="remove it, or train in another mode")


@rule(seen="commit 93f105e2, docs/train/async.md", team=True, of="served")
def weights_sent(run: ExaminedRun, view: View) -> ConfigError | None:
    """Weights are sent to engines on other GPUs. Engines on the same GPUs get them within the process."""
    key, apart = "rollout.checkpoint_engine.backend", run.mode is SEPARATE
    able = ("ray",) if run.config.trainer.device == CPU else ("ray", "nccl", "nixl", "delta_sharded", "mooncake")
    able = able if apart else ("naive",)
    custom = view.get("rollout.checkpoint_engine.custom_backend_module")
    if not view.spec.is_trained or custom or view.get(key) in able:
        return None
    rule = f"in this mode weights are sent by {', '.join(able)}"
    fix = f"leave {setting(view, key)} to +mas/mode=separate_async" if apart else f"set {setting(view, key)}=naive"
    return ConfigError(stated(view, key), rule=rule, fix=fix)
