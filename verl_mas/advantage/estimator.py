"""What every estimator shares: its name, its own defaults, and rows that are fit to be compared."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import wraps
from typing import Any, TypeAlias

import torch
from torch import Tensor

from verl_mas.advantage import diagnostics, estimators, validation
from verl_mas.advantage.kernel import GroupStats, Partition, compact, normalise
from verl_mas.advantage.options import AdvantageOptions
from verl_mas.advantage.record import AdvantageInput, AdvantageOutput
from verl_mas.errors import DataError
from verl_mas.registry import Registry

Estimator: TypeAlias = Callable[[AdvantageInput, AdvantageOptions], AdvantageOutput]

ESTIMATORS: Registry[Estimator] = Registry("advantage estimator")
DEFAULTS: Registry[dict[str, Any]] = Registry("advantage estimator")


def estimator(**defaults: Any) -> Callable[[Estimator], Estimator]:
    """Register a function under its own name. `defaults` are the options in which it differs from the common
    ones, and those that it alone reads. Around it padding is taken out and every row is checked."""

    def decorate(function: Estimator) -> Estimator:
        name = getattr(function, "__name__", "")

        @wraps(function)
        def checked(batch: AdvantageInput, options: AdvantageOptions | None = None) -> AdvantageOutput:
            chosen = (options or AdvantageOptions()).resolved(name, defaults)
            real, rows = _without_padding(batch)
            validation.check_rows(real)
            output = function(real, chosen)
            return replace(output, advantages=_spread(output.advantages, rows, len(batch)))

        DEFAULTS.register(name)(defaults)
        return ESTIMATORS.register(name)(checked)

    return decorate


def compute(name: str, batch: AdvantageInput, options: AdvantageOptions | None = None) -> AdvantageOutput:
    """The advantages of all rows of a step by the estimator of that name."""
    return ESTIMATORS[name](batch, options or AdvantageOptions())


def options_for(name: str, config: Mapping[str, Any] | None) -> AdvantageOptions:
    """A `mas.advantage` mapping with the estimator's own defaults; refuses what that estimator does not read."""
    return AdvantageOptions.from_config(config).resolved(name, DEFAULTS[name])


def compare(
    batch: AdvantageInput,
    groups: Partition,
    options: AdvantageOptions,
    *,
    scores: Tensor | None = None,
    unit: tuple[str, ...] = ("task", "session"),
    pool: tuple[str, ...] = ("agent",),
) -> tuple[Tensor, GroupStats]:
    """The kernel on a batch: what counts as one, and whose deviation batch_std takes, told by columns."""
    units = None
    if options.weighting == "per_session" or options.baseline == "leave_one_out":
        owner = batch.partition(*unit)
        units = compact(groups.ids * owner.count + owner.ids)
    return normalise(
        batch.scores if scores is None else scores,
        groups,
        options,
        weight=_weight(batch, options, units),
        unit=units,
        pool=batch.partition(*pool) if options.scale == "batch_std" else None,
    )


def conclude(batch: AdvantageInput, groups: Partition, advantages: Tensor, stats: GroupStats) -> AdvantageOutput:
    """Advantages as float32, with the diagnostics of the groups they come from."""
    return AdvantageOutput(advantages.float(), stats, diagnostics.per_agent(batch, groups, stats))


def _weight(batch: AdvantageInput, options: AdvantageOptions, units: Partition | None) -> Tensor | None:
    if options.weighting == "per_act" or not len(batch):
        return None
    if options.weighting == "per_session" and units is not None:
        return 1 / torch.bincount(units.ids)[units.ids].double()
    if batch.tokens is None:
        raise DataError(
            "the rows have no tokens",
            rule="weighting=per_token counts the trained tokens of a row",
            fix="fill AdvantageInput.tokens, or set mas.advantage.weighting=per_act",
        )
    return batch.tokens.to(batch.scores.device).double()


def _without_padding(batch: AdvantageInput) -> tuple[AdvantageInput, Tensor | None]:
    if batch.padding is None or not bool(batch.padding.any()):
        return batch, None
    rows = (~batch.padding).nonzero().squeeze(1).to(batch.scores.device)
    return batch.select(rows), rows


def _spread(advantages: Tensor, rows: Tensor | None, size: int) -> Tensor:
    if rows is None:
        return advantages
    return advantages.new_zeros(size).index_copy_(0, rows, advantages)


# The folder is the list: importing every file in it fills the registry.
for _module in pkgutil.iter_modules(estimators.__path__):
    importlib.import_module(f"{estimators.__name__}.{_module.name}")
