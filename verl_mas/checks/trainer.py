"""Checks of verl's own settings: values with which a team cannot be trained."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from omegaconf import DictConfig, OmegaConf

from verl_mas.advantage import ESTIMATORS
from verl_mas.checks.verl.refusals import Problem
from verl_mas.config.merge import SECTION
from verl_mas.config.modes import COLOCATED, KEY, MODES, SYNC, Mode, mode_of
from verl_mas.config.run import Run
from verl_mas.errors import ConfigError, ConfigWarning


@dataclass(frozen=True)
class Required:
    """A setting with one allowed value in a run of a team. A false `value` also allows null or no setting."""

    key: str
    value: object
    rule: str
    fix: str
    modes: tuple[Mode, ...] = tuple(MODES.values())


REQUIRED = (
    Required("trainer.use_v1", True, "teams need verl's V1 trainer", "set trainer.use_v1=True"),
    Required(
        f"{SECTION}.hybrid_engine",
        True,
        "policies train and serve on the same GPUs",
        f"set {SECTION}.hybrid_engine=True, or add +mas/mode=separate_async, whose engines have GPUs of their own",
        # With engines apart nothing reads it.
        (SYNC, COLOCATED),
    ),
    Required(
        "algorithm.use_kl_in_reward",
        False,
        "agents on different policies, each with its own reference, share one reward",
        "set algorithm.use_kl_in_reward=False, and "
        f"{SECTION}.actor.use_kl_loss=True (or per policy, in mas.policies.<policy>.overrides.actor)",
    ),
    Required(
        "algorithm.norm_adv_by_std_in_grpo",
        True,
        "a team's estimators read mas.advantage",
        "set algorithm.norm_adv_by_std_in_grpo=True ++mas.advantage.scale=none",
    ),
    Required(
        "algorithm.filter_groups.enable",
        False,
        "verl drops a task if all its rows have the same value; a team's rows are acts of several agents, which differ "
        "although the rows of each agent agree, or agree because they are of one session",
        "set algorithm.filter_groups.enable=False mas.filter.drop=uniform, which drops a task if every group of "
        "its agents is uniform, and mas.filter.refill=True, which replaces it",
    ),
    Required(
        f"{SECTION}.rollout.agent.default_agent_loop",
        "mas",
        "every task of a team is played by its workflow",
        "leave it to +mas=<team>, which sets it",
    ),
    Required(
        f"{SECTION}.rollout.agent.agent_loop_manager_class",
        "verl_mas.rollout.manager.MasAgentLoopManager",
        "this class starts the workers that run workflows",
        "leave it to +mas=<team>, which sets it",
    ),
    Required("distillation.enabled", False, "a teacher is not supported for a team", "set distillation.enabled=False"),
)
# verl's modes that have an asynchronous one of a team beside them.
ASYNCHRONOUS_OF_VERL = {mode.verl for mode in MODES.values() if mode.asynchronous}


def is_team(config: DictConfig) -> bool:
    return mode_of(config) is not None


def check_mode(config: DictConfig) -> Iterator[Problem]:
    """Of a run that is not one of a team: whether it was meant to be."""
    mode = OmegaConf.select(config, KEY)
    if config.get("mas") is None and mode in MODES:
        yield no_team(mode)
    elif config.get("mas") is not None and mode in ASYNCHRONOUS_OF_VERL:
        yield ConfigError(
            f"{KEY}={mode} with a team (`mas`)",
            rule="verl's own asynchronous trainers know one policy and no agents",
            fix=f"add +mas/mode={mode} after +mas= and +recipe=, and do not set {KEY}",
        )
    elif config.get("mas") is not None:
        yield ConfigWarning(
            f"{KEY}={mode} with a team (`mas`)",
            reason="verl's own trainer runs, which knows no agents and no policies",
            fix=f"add +mas=<team>, which sets it to {SYNC.name}; a team is trained by {', '.join(MODES)}",
        )


def check_own_estimator(config: DictConfig) -> Iterator[ConfigError]:
    """Of a run of verl's own trainers."""
    name = str(config.algorithm.adv_estimator)
    if name in ESTIMATORS and ESTIMATORS[name].remembers:
        yield ConfigError(
            f"algorithm.adv_estimator={name} without a team",
            rule="it compares rows with the scores of earlier steps, which verl's own trainers do not keep",
            fix="add +mas=<team>, or set algorithm.adv_estimator=agent_grpo",
        )


def no_team(mode: str = SYNC.name) -> ConfigError:
    return ConfigError(
        "the command has no team",
        rule=f"{KEY}={mode} trains the team of the `mas` block, which a group adds",
        fix="add +mas=<team>, such as +mas=solver_verifier, or a recipe with a team, such as +recipe=math/shared",
    )


def check_settings(config: DictConfig) -> Iterator[ConfigError]:
    if config.get("mas") is None:
        yield no_team()
        return
    if mode_of(config) is None:
        yield ConfigError(
            f"{KEY}={OmegaConf.select(config, KEY)}",
            rule=f"a team is trained by {', '.join(MODES)}",
            fix="use +mas=<team>; a recipe that names one needs the --config-dir of its folder",
        )
    yield from unmet(config, REQUIRED)
    if wants_critic(config):
        yield ConfigError(
            f"algorithm.adv_estimator={config.algorithm.adv_estimator}, critic.enable={config.critic.enable}",
            rule="a critic would need one value model per policy; verl-mas uses groups of sessions as the baseline",
            fix="set algorithm.adv_estimator=agent_grpo, and do not set critic.enable",
        )
    if config.reward.reward_model.enable and not config.reward.reward_model.enable_resource_pool:
        yield ConfigError(
            "reward.reward_model.enable=True on the policies' GPUs",
            rule="a session is scored when it ends, while the engines are awake",
            fix="set reward.reward_model.enable_resource_pool=True, with its own GPUs",
        )


def unmet(config: DictConfig, settings: Iterable[Required]) -> Iterator[ConfigError]:
    """Settings that do not have the value that the mode of the run allows."""
    mode = mode_of(config) or SYNC
    for required in settings:
        value = OmegaConf.select(config, required.key)
        if mode in required.modes and value != required.value and (value or required.value):
            yield ConfigError(f"{required.key}={value}", rule=required.rule, fix=required.fix)


def wants_critic(config: DictConfig) -> bool:
    return bool(config.critic.enable) or (config.critic.enable is None and config.algorithm.adv_estimator == "gae")


def check_trainable(run: Run) -> Iterator[ConfigError]:
    if not run.trained and not run.config.trainer.val_only:
        yield ConfigError(
            "no policy is trainable",
            rule="training needs a policy with weights to train",
            fix="set mas.policies.<policy>.trainable=True, or trainer.val_only=True",
        )
