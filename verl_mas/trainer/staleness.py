"""Staleness of a step's rows, and its effect on the importance weights.

The weights after step v have version v, so step s updates version s - 1. The staleness of a token is the number of
updates since the version that sampled it. A row is as stale as its oldest token.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
from omegaconf import DictConfig

from verl_mas.run_folder.metrics import names as metric_names
from verl_mas.trainer.metrics import of_policy
from verl_mas.trainer.step import PolicyRows
from verl_mas.verl_ import data_plane, row
from verl_mas.verl_.data_plane import Rows
from verl_mas.verl_.row import RowKey, RowTags, TagValues, is_padding
from verl_mas.verl_.types import Fields

# All tokens or rows with at least this staleness form one class, so that the number of metrics is bounded.
LAST = 8
Numbers: TypeAlias = npt.NDArray[np.int64]
Limits: TypeAlias = tuple[float, float]
Ratios: TypeAlias = npt.NDArray[np.float64]  # log of new probability / probability at which a token was sampled


def metrics(parts: Mapping[str, PolicyRows], corrections: Mapping[str, DictConfig], step: int) -> dict[str, float]:
    """Return the staleness metrics per policy, and the share of sessions with mixed versions.

    `corrections`: policy -> verl's `rollout_correction`.
    """
    values: dict[str, float] = {}
    mixed: dict[tuple[str, int], bool] = {}
    for name, part in parts.items():
        places = [i for i, tag in enumerate(part.batch.tags) if not is_padding(tag)]
        rows = data_plane.select(part.batch, places)
        tags = [RowTags.of(tag) for tag in rows.tags]
        extras: list[Fields] = data_plane.read(rows, [row.EXTRA_FIELDS]).pop(row.EXTRA_FIELDS).tolist()
        own = row_metrics(tags, extras, step)
        if row.OLD_LOG_PROBS in part.data and row.ROLLOUT_LOG_PROBS in part.data:
            limits = clip_limits(corrections[name]) if name in corrections else None
            own |= weight_metrics(*tokens_of(part, places, tags, extras, step), limits)
        values |= of_policy(name, own)
        for key, tag in zip(rows.keys, tags, strict=True):
            parsed = RowKey.parse(key)
            session = parsed.uid, parsed.session
            mixed[session] = mixed.get(session, False) or tag.min_global_steps != tag.max_global_steps
    return {**values, metric_names.session("mixed_versions"): sum(mixed.values()) / len(mixed)} if mixed else values


def row_metrics(tags: Sequence[RowTags], extras: Sequence[Fields], step: int) -> dict[str, float]:
    """Staleness of the rows from engines that count weight versions; empty for other engines."""
    ages = [step - 1 - tag.min_global_steps for tag in tags if tag.min_global_steps is not None]
    if not ages:
        return {}
    aborted = np.array([bool(extra.get(row.ABORTS, 0)) for extra in extras])
    mixed = np.array([tag.min_global_steps != tag.max_global_steps for tag in tags])
    classes = np.minimum(ages, LAST)
    return {
        "staleness/mean": float(np.mean(ages)),
        "staleness/max": float(np.max(ages)),
        **{f"staleness/{age}/rows": float(np.mean(classes == age)) for age in np.unique(classes)},
        "staleness/mixed_versions": float(mixed.mean()),
        "staleness/aborted": float(aborted.mean()),
        "staleness/continued": float((aborted & mixed).mean()),
    }


def tokens_of(
    part: PolicyRows, places: Sequence[int], tags: Sequence[RowTags], extras: Sequence[Fields], step: int
) -> tuple[Numbers, Ratios]:
    """Return the staleness and the log ratios of the tokens that are trained on."""
    data = part.data
    # `loss_mask` covers all sampled tokens. `response_mask` excludes rejected tokens.
    sampled, kept = data[row.LOSS_MASK].unbind(), data[row.RESPONSE_MASK].unbind()
    new, old = data[row.OLD_LOG_PROBS].unbind(), data[row.ROLLOUT_LOG_PROBS].unbind()
    ages, ratios = [], []
    for i, tag, extra in zip(places, tags, extras, strict=True):
        reply = sampled[i].numpy().astype(bool)
        versions = versions_of(extra, tag, int(reply.sum()))
        if versions is None:
            continue
        trained = kept[i].numpy().astype(bool)
        ages.append(step - 1 - versions[trained[reply]])
        ratios.append((new[i].double() - old[i].double()).numpy()[reply & trained])
    none: list[Ratios] = [np.zeros(0)]
    return np.concatenate([*none, *ages]).astype(np.int64), np.concatenate([*none, *ratios])


def versions_of(extra: Fields, tag: RowTags, tokens: int) -> Numbers | None:
    """The version of each sampled token; None if the engine does not count versions.

    verl's tool loop keeps only the oldest version, which is then used for the whole row.
    """
    if tag.min_global_steps is None:
        return None
    listed: Sequence[tuple[int, int]] = extra.get(row.VERSIONS) or ()
    versions = np.repeat([version for _, version in listed], [count for count, _ in listed]).astype(np.int64)
    # A reply that does not fit in its row is cut, so its list of versions may cover more tokens than the row has.
    return versions[:tokens] if listed and len(versions) >= tokens else np.full(tokens, tag.min_global_steps)


def weight_metrics(staleness: Numbers, log_ratio: Ratios, limits: Limits | None) -> dict[str, float]:
    """Compute for each staleness the share of tokens, the mean weight, the KL, and the share of weights outside the
    limits."""
    values: dict[str, float] = {}
    weights = np.exp(log_ratio)
    classes = np.minimum(staleness, LAST)
    for age in np.unique(classes):
        of = classes == age
        ratio, weight = log_ratio[of], weights[of]
        # The KL is never negative, unlike the mean of the log ratio.
        own = {"tokens": of.mean(), "weight": weight.mean(), "kl": (weight - 1 - ratio).mean()}
        if limits is not None:
            own["clipped"] = ((weight < limits[0]) | (weight > limits[1])).mean()
        values |= {f"staleness/{age}/{name}": float(value) for name, value in own.items()}
    return values


def clip_limits(correction: DictConfig) -> Limits | None:
    """Read verl's `rollout_is_threshold`: an upper bound, or both bounds as in `0.5_5.0`. None if weights are only
    measured."""
    if not correction.get("rollout_is"):
        return None
    low, _, high = str(correction.rollout_is_threshold).rpartition("_")
    return float(low or 0), float(high)


class TokenCount:
    """Counts of sampled tokens and of trained tokens since the process started."""

    def __init__(self) -> None:
        self.sampled = self.trained = 0

    def keep(self, tags: Iterable[TagValues]) -> None:
        """Count the tokens of a checkpoint's rows, which are not trained on yet, as sampled."""
        self.sampled += _trainable_tokens(tags)

    def add(
        self, sampled: int, parts: Mapping[str, PolicyRows], left: Mapping[str, TagValues], batch: Rows
    ) -> dict[str, float]:
        """Count the tokens of a step and return the metrics.

        `sampled`: number of tokens that trained policies sampled since the last call. `left`: the tags of the rows in
        the replay buffer.
        """
        self.sampled += sampled
        for part in parts.values():
            masks = part.data[row.RESPONSE_MASK].unbind()
            self.trained += sum(
                int(mask.sum()) for mask, tag in zip(masks, part.batch.tags, strict=True) if not is_padding(tag)
            )
        now = set(batch.keys)
        waiting = _trainable_tokens(tag for key, tag in left.items() if key not in now)
        return {
            "async/tokens/sampled": self.sampled,
            "async/tokens/trained": self.trained,
            "async/tokens/waiting": waiting,
            "async/tokens/lost": self.sampled - self.trained - waiting,
        }


def _trainable_tokens(tags: Iterable[TagValues]) -> int:
    return sum(tag[row.RESPONSE_LEN] for tag in tags if tag.get(row.TRAINABLE))
