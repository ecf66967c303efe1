"""Critics: with `algorithm.adv_estimator=gae`, each policy that is updated has a value model of its own."""

from collections.abc import Iterator
from importlib.util import find_spec

from omegaconf import OmegaConf

from verl_mas.advantage.estimator import PER_AGENT
from verl_mas.checks.examined import ExaminedRun, parts_of
from verl_mas.checks.place import unless_elsewhere
from verl_mas.checks.rules import Problem, rule
from verl_mas.checks.rules.batches import MINI, longest_row
from verl_mas.checks.rules.modes import Wanted
from verl_mas.config.merge import GAE, SECTION
from verl_mas.config.modes import KEY
from verl_mas.config.run import View
from verl_mas.config.verl_settings import CRITIC_TOKENS
from verl_mas.errors import ConfigError
from verl_mas.planning.model_folder import settings

# Settings of verl -> the value that they must have if policies have critics, and the reason.
WANTED: Wanted = {
    "critic.enable": (True, "gae reads the values of a critic"),
    "critic.model.lora_rank": (0, "critics are trained with whole weights; none has been run with an adapter"),
    "algorithm.use_pf_ppo": (False, "a team trains on the rows as they were sampled"),
}
BUDGET, ULYSSES = "critic.ppo_infer_max_token_len_per_gpu", "critic.fsdp.ulysses_sequence_parallel_size"


@rule(seen="verl's own scripts of PPO with +mas=solver_verifier", team=True)
def settings_of_critics(run: ExaminedRun) -> Iterator[ConfigError]:
    """Refuse settings that contradict critics, such as comparisons of rows, or mini batches unlike the policy's."""
    if not run.critics:
        return
    for key, (value, why) in WANTED.items():
        if (given := run.get(key)) not in (None, value):
            yield ConfigError(f"{key}={given} with {GAE}", rule=why, fix=f"remove it, or set {key}={value}")
    unread = [f"mas.advantage.{key}={value}" for key, value in run.mas.advantage.items()]
    unread += ["mas.skip_zero_advantage=True"] if run.mas.skip_zero_advantage is True else []
    for given in unread:
        rule = "no rows are compared, because a critic values each token and learns from all rows"
        fix = f"remove it ({GAE} has algorithm.gamma and algorithm.lam), or set {PER_AGENT}"
        yield ConfigError(f"{given} with {GAE}", rule=rule, fix=fix)
    mini, of_actor = run.get("critic.ppo_mini_batch_size"), run.get(f"{SECTION}.{MINI}")
    if mini != of_actor:
        value = f"critic.ppo_mini_batch_size={mini} with {SECTION}.{MINI}={of_actor}"
        rule = "a critic makes as many optimiser steps as its policy, on the same rows"
        yield ConfigError(value, rule=rule, fix="remove it; mas.updates_per_step is the number of both")
    if run.mode and run.mode.asynchronous:
        rule = "a value is the expected reward under the current weights, and no correction for older weights exists"
        fix = f"remove +mas/mode, or set {PER_AGENT}"
        yield ConfigError(f"{KEY}={run.mode.name} with {GAE}", rule=rule, fix=fix)


@rule(seen="verl's own scripts of PPO with +mas=solver_verifier", team=True, of="learning")
def critic_beside_policy(run: ExaminedRun, view: View) -> Iterator[ConfigError]:
    """Check that a critic fits the processes, rows and sequence parallelism that it shares with its policy."""
    if not run.critics:
        return
    if view.spec.adapter_of:
        value = f"mas.policies.{view.name}.adapter_of={view.spec.adapter_of} with {GAE}"
        rule = "a critic is a model in the processes of its policy, and an adapter has those of its base"
        fix = f"remove adapter_of, so that {view.name} has its own weights, or set {PER_AGENT}"
        yield ConfigError(value, rule=rule, fix=fix)
    if (parts := run.get(ULYSSES) or 1) != parts_of(view):
        rule = f"policy {view.name} divides a sequence among {parts_of(view)} GPUs, and its critic gets the same rows"
        yield ConfigError(f"{ULYSSES}={parts}", rule=rule, fix=f"set {ULYSSES}={parts_of(view)}")
    if (given := run.get(BUDGET) or CRITIC_TOKENS) * parts < longest_row(view):
        rule = f"a row of policy {view.name} has up to {longest_row(view)} tokens"
        yield ConfigError(f"{BUDGET}={given}", rule=rule, fix=f"set ++{BUDGET}={longest_row(view)} or more")


@rule(seen="verl's own scripts of PPO with +recipe=guide_driver/qwen25vl", of="learning", here=True)
def critic_loadable(run: ExaminedRun, view: View) -> Problem | None:
    """verl loads a critic as transformers' model for token classification, or with the package trl."""
    if not run.critics or find_spec("trl"):
        return None
    from transformers.models.auto.modeling_auto import MODEL_FOR_TOKEN_CLASSIFICATION_MAPPING_NAMES as KINDS

    kind = settings(OmegaConf.create({"path": view.critic_path})).get("model_type")
    if kind is None or kind in KINDS:
        return None
    value = f"a critic of policy {view.name} from {view.critic_path}, whose model_type is {kind}"
    rule = "transformers has no token classification of this type, so verl needs trl, which is not installed"
    fix = "set algorithm.adv_estimator=agent_grpo, or pip install trl==0.27.0, the version that verl names"
    return unless_elsewhere(run.config, ConfigError(value, rule=rule, fix=fix))
