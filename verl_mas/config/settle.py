"""Translates settings of a single-agent command that mean something else for a team, and reports each change in one
line."""

from collections.abc import Iterator, Mapping
from pathlib import Path

from omegaconf import DictConfig, OmegaConf

from verl_mas.config.merge import SECTION, leaves
from verl_mas.config.modes import KEY, MODES
from verl_mas.config.verl_settings import verl_settings
from verl_mas.util import read_yaml

MANAGER = "verl_mas.rollout.manager.MasAgentLoopManager"
AGENT = f"{SECTION}.rollout.agent"
MODE_FILES = Path(__file__).parent / "hydra" / "mas" / "mode"
# verl's asynchronous modes -> the modes of a team.
OF_VERL = {mode.verl: mode.name for mode in MODES.values() if mode.asynchronous}


def settle(config: DictConfig) -> list[str]:
    """Translate settings of a composed configuration with a team. Returns one line per change."""
    if config.get("mas") is None:
        return []
    return [line for change in (_mode, _loops, _deviation, _sum_norm, _filter, _kl) for line in change(config)]


def _set(config: DictConfig, values: Mapping[str, object]) -> str:
    for key, value in values.items():
        OmegaConf.update(config, key, value, force_add=True)
    return ", ".join(f"{key}={value}" for key, value in values.items())


def _mode(config: DictConfig) -> Iterator[str]:
    """Replace verl's asynchronous mode by the team's mode, and add the settings of `+mas/mode=` that the command does
    not set."""
    mode = OmegaConf.select(config, KEY)
    if mode not in OF_VERL:
        return
    defaults, given = (
        {".".join(path): value for path, value in leaves(tree)}
        for tree in (verl_settings().yaml, read_yaml(MODE_FILES / f"{mode}.yaml"))
    )
    unset = {key: value for key, value in given.items() if OmegaConf.select(config, key) == defaults.get(key)}
    _set(config, {**unset, KEY: OF_VERL[mode]})
    yield f"{KEY}={mode} with a team is {OF_VERL[mode]}, as +mas/mode={mode} sets it"


def _loops(config: DictConfig) -> Iterator[str]:
    """Let the workflow run every task of a team."""
    wanted = {"default_agent_loop": "mas", "agent_loop_manager_class": MANAGER}
    agent = config[SECTION].rollout.agent
    if other := {f"{AGENT}.{key}": value for key, value in wanted.items() if agent.get(key) != value}:
        yield f"every task of a team is played by its workflow: {_set(config, other)}"


def _deviation(config: DictConfig) -> Iterator[str]:
    """Translate verl's setting that turns off the division by the standard deviation, as in Dr. GRPO."""
    scale = OmegaConf.select(config, "mas.advantage.scale")
    if config.algorithm.norm_adv_by_std_in_grpo is False and scale is None:
        done = _set(config, {"mas.advantage.scale": "none", "algorithm.norm_adv_by_std_in_grpo": True})
        yield f"algorithm.norm_adv_by_std_in_grpo=False: {done.partition(',')[0]}"


def _sum_norm(config: DictConfig) -> Iterator[str]:  # patch: sum-norm-factor
    """Set a factor for the loss. Without it, verl divides by the longest row of each micro batch, so the gradient
    depends on the sizes of micro batches."""
    actor = config[SECTION].actor
    if actor.loss_agg_mode == "seq-mean-token-sum-norm" and actor.loss_scale_factor is None:
        values = {f"{SECTION}.actor.loss_scale_factor": config.data.max_response_length}
        yield f"loss_agg_mode=seq-mean-token-sum-norm without a factor: {_set(config, values)}"


def _filter(config: DictConfig) -> Iterator[str]:
    """Replace verl's filter, which drops a task if a metric (by default the reward) is equal in all its rows, by the
    team's filter, which compares the rows of each agent separately."""
    if OmegaConf.select(config, "algorithm.filter_groups.enable"):
        values: dict[str, object] = {"mas.filter.drop": "uniform", "mas.filter.refill": True}
        _set(config, {"algorithm.filter_groups.enable": False})
        yield f"algorithm.filter_groups.enable=True: {_set(config, values)}"


def _kl(config: DictConfig) -> Iterator[str]:
    """Move the KL of a single policy from the reward, which the agents share, into the loss."""
    policies = OmegaConf.select(config, "mas.policies") or {}
    if config.algorithm.use_kl_in_reward and len(policies) < 2:
        weight = config.algorithm.kl_ctrl.kl_coef
        values = {f"{SECTION}.actor.use_kl_loss": True, f"{SECTION}.actor.kl_loss_coef": weight}
        _set(config, {"algorithm.use_kl_in_reward": False})
        yield f"algorithm.use_kl_in_reward=True: {_set(config, values)}, as the agents share one reward"
