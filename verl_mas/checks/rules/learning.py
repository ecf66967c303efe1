"""Whether a team can learn: estimator, rewards, sampling, and which agents are trained."""

from collections.abc import Iterator
from importlib.util import find_spec

from omegaconf import OmegaConf

from verl_mas.advantage import ESTIMATORS, options_for
from verl_mas.advantage.estimator import PER_AGENT
from verl_mas.checks.examined import ExaminedRun, parts_of, setting, stated
from verl_mas.checks.place import unless_elsewhere
from verl_mas.checks.rules import Problem, rule
from verl_mas.checks.rules.batches import MINI, longest_row
from verl_mas.config.merge import GAE, LOSS_MODES, SECTION
from verl_mas.config.modes import KEY, MODES
from verl_mas.config.registry import closest
from verl_mas.config.run import View
from verl_mas.config.verl_settings import CRITIC_TOKENS
from verl_mas.errors import ConfigError, ConfigWarning
from verl_mas.planning.model_folder import settings
from verl_mas.workflow.agents import flat

BUDGET, ULYSSES = "critic.ppo_infer_max_token_len_per_gpu", "critic.fsdp.ulysses_sequence_parallel_size"
# Sampling settings with which all replies to a prompt are equal.
SAME = {"temperature": 0, "top_k": 1}


@rule(seen="verl's own scripts with +mas=solver_verifier alone", team=True)
def estimator_of_team(run: ExaminedRun) -> Iterator[ConfigError]:
    """A team's rows are compared per agent."""
    name = str(run.config.algorithm.adv_estimator)
    if run.config.critic.enable and not run.critics:
        value = f"critic.enable=True with algorithm.adv_estimator={name}"
        fix = f"remove critic.enable, or set algorithm.adv_estimator={GAE}"
        yield ConfigError(value, rule=f"of a team's estimators, only {GAE} reads a critic", fix=fix)
    elif run.critics:
        return  # The rules of critics, below, check these runs.
    elif name in ESTIMATORS or not (close := closest(name, instead := _replacements())):
        options_for(name, run.mas.advantage)  # Raises ConfigError for a wrong option.
    elif name in instead:
        rule = "a team's rows are compared per agent; verl's estimators compare all rows of a prompt"
        fix = f"set algorithm.adv_estimator={instead[name]}"
        yield ConfigError(f"algorithm.adv_estimator={name}", rule=rule, fix=fix)
    else:
        fix = f"did you mean {instead[close]!r}? known: {', '.join(ESTIMATORS)}"
        yield ConfigError(f"algorithm.adv_estimator={name}", rule="a team's estimators are per agent", fix=fix)


def _replacements() -> dict[str, str]:
    """Map each estimator of verl to the most similar estimator that compares the rows of one agent."""
    return {theirs: ours for ours in ESTIMATORS for theirs in ESTIMATORS[ours].replaces}


@rule(seen="verl's own script run_mistral_nemo_12b_skyworkrm_fsdp.sh with +mas=solver_verifier", team=True)
def reward_model_apart(run: ExaminedRun) -> ConfigError | None:
    """A reward model has GPUs of its own."""
    reward = run.config.reward.reward_model
    if not reward.enable or (reward.enable_resource_pool and reward.nnodes and reward.n_gpus_per_node):
        return None
    value, rule = "reward.reward_model.enable=True without GPUs", "a session is scored when it ends, with engines awake"
    fix = "set reward.reward_model.enable_resource_pool=True reward.reward_model.nnodes=1 and n_gpus_per_node=<GPUs>"
    return ConfigError(value, rule=rule, fix=fix)


@rule(seen="commit 0d6f9763: at_grpo on a workflow that does not branch; commit 1656e98e: agent_rae without a team")
def estimator_has_its_columns(run: ExaminedRun) -> ConfigError | None:
    """Some estimators read columns that not every run has."""
    own = run.estimator
    if own is None:
        return None
    if run.mode is None and (own.remembers or own.needs):
        value, rule = "without a team", "verl's own trainers keep neither scores of earlier steps nor acts"
        fix = f"add +mas=<team>, or set {PER_AGENT}"
    elif run.mode and "branch" in own.needs and not run.workflow.branches:
        value, rule = f"with workflow {run.mas.workflow.name}", "it compares the candidates of one act"
        fix = f"set {PER_AGENT}, or `branches = True` in a class of yours that calls `branch`"
    else:
        return None
    return ConfigError(f"algorithm.adv_estimator={own.name} {value}", rule=rule, fix=fix)


@rule(seen="commit 7097aae9: groups that mixed the prompts of forks", team=True)
def forks_compared(run: ExaminedRun) -> Iterator[ConfigError]:
    """With forks, the estimator must not compare acts by number and gamma must not be set, because numbers repeat."""
    if run.workflow.forks and run.estimator and run.estimator.numbers_acts:
        rule = "it compares acts by their number, and the forks of a session number theirs alike"
        fix = f"set {PER_AGENT} or mhgpo, which compare all acts of an agent on a task"
        yield ConfigError(f"algorithm.adv_estimator={run.estimator.name} with forks", rule=rule, fix=fix)
    if run.workflow.forks and run.options.gamma is not None:
        rule = "rewards are credited to earlier acts of the session, and each fork has acts of its own"
        yield ConfigError(f"mas.advantage.gamma={run.options.gamma} with forks", rule=rule, fix="remove it")


@rule(seen="tulerfeng/Video-R1#86, huggingface/trl#3857", team=True)
def some_reward(run: ExaminedRun) -> Iterator[ConfigError]:
    """`mas.reward.team` or `mas.reward.local` is not 0, and local is not 0 if the estimator reads acts' own rewards."""
    reward, own = run.mas.reward, run.estimator
    penalties = reward.penalty_on != "none" and any(spec.format_penalty for spec in run.mas.agents.values())
    if not run.learning or penalties:
        return
    if not reward.team and not reward.local:
        rule = "a score is the team's reward and the act's own, each times its weight: all scores are 0"
        yield ConfigError("mas.reward.team=0 with mas.reward.local=0", rule=rule, fix="set mas.reward.team=1")
    if not reward.local and own and own.reads_own_rewards(run.options):
        value = f"mas.reward.local=0 (preset {reward.preset}) with algorithm.adv_estimator={own.name}"
        rule = "acts' own rewards are read, and they have no weight"
        fix = "set ++mas.reward.local=1, or another estimator, without mas.advantage.gamma"
        yield ConfigError(value, rule=rule, fix=fix)


@rule(seen="huggingface/trl#3199, modelscope/ms-swift#3980", team=True)
def filtered_groups(run: ExaminedRun) -> Iterator[ConfigError]:
    """A filter compares the sessions of a task, so it needs several sessions per task."""
    wanted, sessions = run.mas.filter, run.config[SECTION].rollout.n
    by_sessions = wanted.keep_share is not None or (wanted.drop and wanted.by != "score")
    if run.learning and by_sessions and sessions == 1:
        rule, fix = "a task is kept by how its sessions differ, and there is one", f"set {SECTION}.rollout.n=8"
        yield ConfigError(f"mas.filter with {SECTION}.rollout.n=1", rule=rule, fix=fix)
    own = run.estimator
    across = run.critics
    if own:
        across = own.reads_running(run.options) or not (own.compares_sessions or "branch" in own.needs)
    if run.learning and wanted.drop and wanted.by == "score" and across:
        value = f"mas.filter.drop=uniform with algorithm.adv_estimator={run.config.algorithm.adv_estimator}"
        rule = "rows of equal scores have an advantage, too, unless they are compared within a task"
        yield ConfigError(value, rule=rule, fix=f"set mas.filter.by=team, or {PER_AGENT}")


@rule(seen="huggingface/trl#3857, BytedTsinghua-SIA/DAPO#22", team=True, of="learning")
def same_replies(run: ExaminedRun, view: View) -> Iterator[ConfigWarning]:
    """A trained agent samples different replies to one prompt."""
    for name, agent in run.learners(view).items():
        own = flat(agent.spec.sampling)
        drawn = {key: own.get(key, view.get(f"rollout.{key}")) for key in SAME}
        fixed: dict[str, object] = {key: value for key, value in drawn.items() if value == SAME[key]}
        fixed |= {"seed": own["seed"]} if own.get("seed") is not None else {}
        for key, value in fixed.items():
            reason = "every reply to one prompt is then the same, so its sessions differ in nothing"
            fix = f"set it in ++mas.agents.{agent.role}.validation_sampling"
            yield ConfigWarning(f"agent {name} is trained with {key}={value}", reason, fix)


@rule(seen="commit 6cf930eb: agents of different temperatures on fused kernels", team=True, of="learning")
def one_temperature(run: ExaminedRun, view: View) -> ConfigError | None:
    """verl's fused kernels score all rows of a policy at one temperature."""
    usual, key = view.get("rollout.temperature"), "model.use_fused_kernels"
    temperatures = {one.spec.sampling.get("temperature", usual) for one in run.learners(view).values()}
    if not view.get(key) or len(temperatures) < 2:
        return None
    rule = "verl's fused kernels score all rows of a policy at one temperature, and its agents have several"
    return ConfigError(stated(view, key), rule=rule, fix=f"set {setting(view, key)}=False, or one temperature")


@rule(seen="commit 5fc0fcd4: commands in which nothing is learned", team=True)
def somebody_learns(run: ExaminedRun) -> Iterator[Problem]:
    """Training needs a trainable policy with a trainable agent."""
    if run.config.trainer.val_only or any(one.spec.policy not in run.mas.policies for one in run.agents.values()):
        return  # Nothing is trained, or the rule `acting` reports the missing policy.
    learning = {policy for one in run.agents.values() if one.trainable for policy in one.policies}
    idle = [view.name for view in run.learning if view.name not in learning]
    if len(idle) == len(run.learning):
        fix = "set mas.policies.<policy>.trainable=True ++mas.agents.<agent>.trainable=true, or trainer.val_only=True"
        yield ConfigError("no agent and policy is trainable", rule="training needs rows that are trained on", fix=fix)
        return
    for name in idle:
        reason, fix = "it is never updated, and has an optimiser", f"set ++mas.policies.{name}.trainable=false"
        yield ConfigWarning(f"mas.policies.{name}: every agent on it has trainable=false", reason, fix)


@rule(seen="verl's own scripts run_qwen3_8b_fsdp.sh of RLOO and REINFORCE++ with two policies", team=True)
def kl_in_reward(run: ExaminedRun) -> ConfigError | None:
    """A reward that several policies share cannot contain the KL of each of them."""
    if not run.get("algorithm.use_kl_in_reward") or len(run.trained) < 2:
        return None
    rule = "agents share one reward, but each policy has its own reference"
    fix = f"set algorithm.use_kl_in_reward=False {SECTION}.actor.use_kl_loss=True"
    return ConfigError("algorithm.use_kl_in_reward=True with several policies", rule=rule, fix=fix)


@rule(seen="docs/train/loss.md", team=True, of="learning")
def one_weighting(run: ExaminedRun, view: View) -> ConfigError | None:
    """Only one setting says how the losses of rows are summed."""
    weighting = run.mas.loss.weighting
    loss, mode = view.get("actor.policy_loss.loss_mode"), view.get("actor.loss_agg_mode")
    if weighting and (loss == "geo_mean" or (loss == "sapo" and weighting in ("token", "agent_token"))):
        rule = "this loss adds rows up in a way of its own"
        return ConfigError(stated(view, "actor.policy_loss.loss_mode"), rule=rule, fix="remove mas.loss.weighting")
    if weighting and mode not in ("token-mean", LOSS_MODES[weighting]):
        value = f"mas.loss.weighting={weighting} with {stated(view, 'actor.loss_agg_mode')}"
        return ConfigError(value, rule="both say how rows are added up to the loss", fix="remove one of the two")
    return None


@rule(seen="commit e6ea2ae8: rows with a KL term are not skipped", team=True, of="learning")
def skipped_rows(run: ExaminedRun, view: View) -> ConfigError | None:
    """Rows without advantage cannot be skipped if a KL term, an entropy term or the loss counts them."""
    terms = [key for key in ("actor.use_kl_loss", "actor.entropy_coeff") if view.get(key)]
    terms += [] if view.proportional else ["actor.policy_loss.loss_mode"]
    if run.mas.skip_zero_advantage is not True or not terms:
        return None
    rule = "rows without advantage still count in this term of the loss"
    return ConfigError(f"mas.skip_zero_advantage=True with {stated(view, terms[0])}", rule=rule, fix="set it to auto")


# Critics: with `algorithm.adv_estimator=gae`, each policy that is updated has a value model of its own.


@rule(seen="verl's own scripts of PPO with +mas=solver_verifier", team=True)
def settings_of_critics(run: ExaminedRun) -> Iterator[ConfigError]:
    """Refuse settings that contradict critics, such as comparisons of rows, or mini batches unlike the policy's."""
    if not run.critics:
        return
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


@rule(seen="docs/train/configuration.md", team=False)
def team_meant(run: ExaminedRun) -> ConfigError | None:
    """A run with a team uses a team's trainer mode."""
    if run.config.get("mas") is None:
        return None
    rule = f"a team is trained by {', '.join(MODES)}"
    return ConfigError(f"{KEY}={run.get(KEY)} with a team (`mas`)", rule=rule, fix=f"remove {KEY}, or the team")


def no_team(mode: str = "mas") -> ConfigError:
    rule = f"{KEY}={mode} trains the team of the `mas` block, which a group adds"
    fix = "add +mas=<team>, such as +mas=solver_verifier, or a recipe with a team, such as +recipe=math/shared"
    return ConfigError("the command has no team", rule=rule, fix=fix)
