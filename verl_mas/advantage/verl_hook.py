"""Registers our estimators with verl, for verl's stock trainer, whose rows have neither agents nor turns."""

import importlib
import logging
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import cache
from types import ModuleType
from typing import TypeAlias

import numpy as np
import torch
from torch import Tensor

from verl_mas.advantage.estimator import ESTIMATORS, compute_advantages
from verl_mas.advantage.kernel import to_tokens, total
from verl_mas.advantage.options import AdvantageOptions
from verl_mas.advantage.record import AdvantageInput
from verl_mas.errors import DataError

logger = logging.getLogger(__name__)

StockEstimator: TypeAlias = Callable[..., tuple[Tensor, Tensor]]


def register_estimators(core_algos: ModuleType | None = None) -> None:
    """Register every estimator with verl under its name. A second call changes nothing."""
    core_algos = core_algos or importlib.import_module("verl.trainer.ppo.core_algos")
    for name in ESTIMATORS:
        core_algos.register_adv_est(name)(stock(name))


@cache
def stock(name: str) -> StockEstimator:
    """Wrap an estimator with verl's signature: every row is one session of one agent, grouped by verl's uid.

    Estimators that compare rows by turn or by observation refuse such rows, because verl passes neither column.
    """

    @torch.no_grad()
    def estimate(
        token_level_rewards: Tensor,
        response_mask: Tensor,
        config: Mapping[str, object] | None = None,
        index: np.ndarray | None = None,
        **_: object,
    ) -> tuple[Tensor, Tensor]:
        warn_once()
        batch = _one_agent(token_level_rewards, response_mask, index)
        # This is verl's own switch for Dr. GRPO; all other options have their defaults.
        by_std = config is None or config.get("norm_adv_by_std_in_grpo", True)
        options = AdvantageOptions() if by_std else AdvantageOptions(scale="none")
        advantages = to_tokens(compute_advantages(name, batch, options).advantages, response_mask)
        return advantages, advantages

    estimate.__name__ = estimate.__qualname__ = name
    return estimate


def _one_agent(token_level_rewards: Tensor, response_mask: Tensor, index: np.ndarray | None) -> AdvantageInput:
    if index is None:
        rule = "rows are compared with rows of the same uid"
        raise DataError("verl passed no uid", rule=rule, fix="keep uid in the batch")
    rows = len(token_level_rewards)
    tokens = response_mask.sum(-1)
    batch = AdvantageInput(
        scores=token_level_rewards.sum(-1).float(),
        task=index,
        session=torch.arange(rows),
        agent=torch.zeros(rows, dtype=torch.long),
        tokens=tokens,
    )
    # verl's padding rows have their own uid and no trained tokens. A real row with an empty reply still counts in the
    # baseline of its task.
    task = batch.partition("task")
    return replace(batch, padding=(total(tokens.double(), task) == 0)[task.ids])


@cache
def warn_once() -> None:
    logger.warning(
        "verl's own trainer does not pass a row's agent, so agents are not distinguished: every row "
        "counts as one session of one agent. With +mas=<team> each agent has its own groups."
    )
