"""The computations of all estimators: they turn scores into advantages, per row and per token.

They run in float64 without a loop over rows, and the results are reproducible bit by bit.
"""

from __future__ import annotations

from dataclasses import dataclass

from verl_mas.advantage.options import AdvantageOptions
from verl_mas.util.later import Tensor, torch

# Scores are float32. A deviation below four rounding steps is an effect of rounding, not a difference in scores.
ROUNDING = 4 * 2.0**-23


@dataclass(frozen=True)
class Partition:
    """Assigns every row to a part: `ids` [N] in 0..count-1. Every part has at least one row."""

    ids: Tensor
    count: int


@dataclass(frozen=True)
class GroupStats:
    """Statistics of each group [G]: its number of units, and the weighted moments of their scores."""

    size: Tensor
    mean: Tensor
    std: Tensor
    uniform: Tensor

    @property
    def single(self) -> Tensor:
        return self.size == 1


@dataclass(frozen=True)
class Prior:
    """Prior of each group [G]: pseudo-rows with this mass, mean and variance."""

    mass: Tensor
    mean: Tensor
    variance: Tensor


def normalise(
    scores: Tensor,
    groups: Partition,
    options: AdvantageOptions,
    *,
    weight: Tensor | None = None,
    unit: Partition | None = None,
    pool: Partition | None = None,
    prior: Prior | None = None,
) -> tuple[Tensor, GroupStats]:
    """Compute the advantages [N] in float64, and the statistics of every group.

    weight  how often a row counts (default: once).
    unit    rows that count as one in a group's size and in leave-one-out; each unit lies in one group (default:
            every row by itself).
    pool    rows that share a deviation if scale is batch_std (default: all).
    prior   prior of each group. Leave-one-out removes rows from a baseline, but never the prior.
    """
    x = scores.detach().double()
    centred, mass, stats = moments(x, groups, options.deviation, weight, prior)
    if unit is not None:
        stats = GroupStats(units_per_group(groups, unit), stats.mean, stats.std, stats.uniform)
    advantage = centred
    if options.baseline == "leave_one_out":
        advantage = centred + _own_share(centred, mass, groups, weight, unit)
    elif options.baseline == "best_other":
        advantage = (x - _best_other(x, groups, unit)).clamp_min(0.0)
    alone = stats.single if prior is None else stats.single & (prior.mass <= ROUNDING)
    gain = torch.ones_like(stats.std)
    if options.scale == "std":
        gain = 1 / (stats.std + options.eps)
    elif options.scale == "batch_std":
        pool = pool or Partition(torch.zeros_like(groups.ids), 1)
        _, _, shared = moments(x, pool, options.deviation, weight)
        gain = 1 / (shared.std.index_select(0, part_of_group(groups, pool)) + options.eps)
    gain = gain.masked_fill(stats.uniform | alone, 0.0)
    advantage = advantage * gain.index_select(0, groups.ids)
    if options.group_of_one == "raw":
        advantage = torch.where(alone.index_select(0, groups.ids), x, advantage)
    return advantage, stats


def moments(
    x: Tensor, groups: Partition, deviation: str, weight: Tensor | None = None, prior: Prior | None = None
) -> tuple[Tensor, Tensor, GroupStats]:
    """Return centred scores [N], mass [G] (the sum of weights) and statistics [G], whose sizes count rows."""
    size = torch.bincount(groups.ids, minlength=groups.count)
    mass = size.double() if weight is None else total(weight, groups)
    mean = total(x if weight is None else weight * x, groups) / mass.clamp_min(1e-300)
    centred = x - mean.index_select(0, groups.ids)
    square = centred * centred
    spread = total(square if weight is None else weight * square, groups)
    if prior is not None:
        shift = (prior.mean - mean) * (prior.mass / (mass + prior.mass).clamp_min(1e-300))
        spread = spread + prior.mass * prior.variance + mass * shift * (prior.mean - mean)
        mean, mass = mean + shift, mass + prior.mass
        centred = x - mean.index_select(0, groups.ids)
    freedom = mass - 1 if deviation == "sample" else mass
    std = torch.where(freedom > ROUNDING, spread / freedom.clamp_min(ROUNDING), 0.0).sqrt()
    return centred, mass, GroupStats(size, mean, std, std <= ROUNDING * mean.abs())


def total(values: Tensor, groups: Partition) -> Tensor:
    """Sum `values` over each group. The result is reproducible bit by bit."""
    out = values.new_zeros(groups.count)
    if values.is_cuda:  # on a GPU only index_put_ adds in a fixed order, on a CPU only index_add_
        return out.index_put_((groups.ids,), values, accumulate=True)
    return out.index_add_(0, groups.ids, values)


def _own_share(
    centred: Tensor, mass: Tensor, groups: Partition, weight: Tensor | None, unit: Partition | None
) -> Tensor:
    """Return how much each centred score grows if the row's own unit is excluded from the mean."""
    mine = torch.ones_like(centred) if weight is None else weight
    own = mine * centred
    if unit is not None:
        own, mine = (total(part, unit).index_select(0, unit.ids) for part in (own, mine))
    others = mass.index_select(0, groups.ids) - mine
    return torch.where(others > ROUNDING, own / others.clamp_min(ROUNDING), 0.0)


def _best_other(x: Tensor, groups: Partition, unit: Partition | None) -> Tensor:
    """Return the best score in the row's group outside of its own unit, or a very low number if there is no other
    unit."""
    units = torch.arange(len(x), device=x.device) if unit is None else unit.ids
    best = _best(x, groups)
    at_best = x == best
    leader = units.new_zeros(groups.count).index_copy_(0, groups.ids[at_best], units[at_best])
    # If several units share the best score, one of them is the leader. The other units are compared with the leader,
    # and the leader is compared with the best of the other units.
    leads = units == leader[groups.ids]
    return torch.where(leads, _best(x.masked_fill(leads, -1e300), groups), best)


def _best(x: Tensor, groups: Partition) -> Tensor:
    return x.new_full((groups.count,), -1e300).scatter_reduce_(0, groups.ids, x, "amax")[groups.ids]


def units_per_group(groups: Partition, unit: Partition) -> Tensor:
    """Count the units of each group. Every unit lies in one group."""
    return torch.bincount(part_of_group(unit, groups), minlength=groups.count)


def part_of_group(groups: Partition, parts: Partition) -> Tensor:
    """Return the part [G] that contains the rows of each group. Each group lies in one part."""
    return parts.ids.new_empty(groups.count).index_copy_(0, groups.ids, parts.ids)


def compact(ids: Tensor, span: int | None = None) -> Partition:
    """Put rows with equal ids into one part. Parts are numbered in the order of the ids. `span`: an exclusive upper
    bound of the ids, if it is known."""
    if span is not None and span <= 4 * len(ids):
        seen = torch.zeros(span, dtype=torch.long, device=ids.device).index_fill_(0, ids, 1)
        return Partition((seen.cumsum(0) - 1).index_select(0, ids), int(seen.sum()))
    distinct, part = torch.unique(ids, return_inverse=True)
    return Partition(part, len(distinct))


def to_tokens(advantages: Tensor, mask: Tensor) -> Tensor:
    """Return the row's advantage for each token with a response mask of 1, and 0 for the others.

    The result is float32 [N, T], or jagged if the mask is. No other tensor of this size is allocated.
    """
    if mask.is_nested:
        tokens = to_tokens(per_token(advantages, mask), mask.values().unsqueeze(1)).squeeze(1)
        return torch.nested.nested_tensor_from_jagged(tokens, offsets_of(mask))
    out = torch.empty(mask.shape, dtype=torch.float32, device=mask.device).copy_(mask)
    return out.mul_(advantages.detach().to(out).unsqueeze(1))


def per_token(values: Tensor, jagged: Tensor) -> Tensor:
    """Repeat a value per row [N] for every token of the rows of a jagged tensor, row after row."""
    return values.to(jagged.device).repeat_interleave(offsets_of(jagged).diff())


def offsets_of(jagged: Tensor) -> Tensor:
    offsets: Tensor = jagged.offsets()  # type: ignore[attr-defined]  # nested tensors have it
    return offsets
