"""Processes the rows of one training step, from the replay buffer to the optimisers."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import torch
from tensordict import TensorDict
from torch import Tensor
from verl.trainer.ppo.core_algos import compute_gae_advantage_return
from verl.workers.utils.padding import response_to_nested

from verl_mas.advantage import AdvantageInput, AdvantageOptions, RunningScores, compute_advantages, to_tokens
from verl_mas.config.run import Run
from verl_mas.trainer.checkpoint import running_state
from verl_mas.trainer.loss_weights import RowWeights
from verl_mas.verl_ import data_plane, row
from verl_mas.verl_.data_plane import Rows
from verl_mas.verl_.row import RowKey, RowTags, is_padding

# The fields that the driver reads from every row.
COLUMNS = (row.RESPONSE_MASK, row.SCORES)


@dataclass
class Columns:
    """The fields of rows that the driver reads, in batch order."""

    keys: Sequence[RowKey]
    tags: Sequence[RowTags]
    scores: Tensor  # [N]
    masks: Sequence[Tensor]  # N times [T]

    @property
    def tokens(self) -> Tensor:
        return torch.stack([mask.sum() for mask in self.masks])


@dataclass
class PolicyRows:
    """One policy's rows of a step."""

    batch: Rows
    data: TensorDict = field(default_factory=TensorDict)  # fields read from `batch`, in its order: masks and scores
    changed: Mapping[str, Tensor] = field(default_factory=dict)  # fields to write together with the advantages
    weights: RowWeights = field(default_factory=lambda: RowWeights(0))
    advantages: Tensor = field(default_factory=lambda: torch.empty(0))
    # The advantage and return of each token if the policy has a critic. Without a critic, this is empty, because
    # all tokens have their row's advantage.
    of_tokens: Mapping[str, Tensor] = field(default_factory=dict)
    metrics: dict[str, float] = field(default_factory=dict)


def in_order(batch: Rows) -> Rows:
    """Sort rows by task, session and act, so that sums of floats do not depend on the order in which sessions end."""

    def sort_key(i: int) -> tuple[int, int, str, int, int]:
        key = RowKey.parse(batch.keys[i])
        return batch.tags[i][row.GLOBAL_STEPS], len(key.uid), key.uid, key.session, key.index

    batch.reorder(sorted(range(len(batch)), key=sort_key))
    return batch


def read_columns(batch: Rows, parts: Iterable[PolicyRows] = ()) -> Columns:
    """Return the columns of a batch. Rows of `parts` have been read, so only the other rows are read."""
    values = {key: own for part in parts for key, own in _scores_and_masks(part.batch, part.data).items()}
    if unread := [i for i, key in enumerate(batch.keys) if key not in values]:
        rest = data_plane.select(batch, unread)
        values |= _scores_and_masks(rest, data_plane.read(rest, COLUMNS))
    scores, masks = zip(*(values[key] for key in batch.keys), strict=True)
    keys, tags = list(map(RowKey.parse, batch.keys)), list(map(RowTags.of, batch.tags))
    return Columns(keys, tags, torch.stack([score.sum() for score in scores]).float(), masks)


def _scores_and_masks(rows: Rows, data: TensorDict) -> dict[str, tuple[Tensor, Tensor]]:
    columns = zip(data[row.SCORES].unbind(), data[row.RESPONSE_MASK].unbind(), strict=True)
    return dict(zip(rows.keys, columns, strict=True))


class Credit:
    """Computes the advantages of a run, with an estimator that may remember scores from step to step."""

    def __init__(self, run: Run, agents: Sequence[str]):
        self._estimator, self._agents = str(run.config.algorithm.adv_estimator), agents
        self._critics = run.critics  # whether critics decide the advantages
        self._options, self._reward = AdvantageOptions.from_config(run.mas.advantage), run.mas.reward
        self.running = running_state(run)

    def of_step(
        self, columns: Columns, trained_on: Sequence[int], parts: Iterable[PolicyRows] = ()
    ) -> tuple[Tensor, dict[str, float]]:
        """Compute the advantages and diagnostics of a step.

        Rows that are not in `trained_on` get an advantage of 0, and their scores are not remembered.
        """
        if self._critics:
            each = (zip(part.batch.keys, part.advantages, strict=True) for part in parts)
            of_row = {key: advantage for rows in each for key, advantage in rows}
            return torch.stack([of_row.get(str(key), torch.tensor(0.0)) for key in columns.keys]), {}
        return self.of_rows(columns, trained_on, self.running.scores if self.running else None)

    def of_rows(
        self, columns: Columns, chosen: Sequence[int], running: RunningScores | None = None
    ) -> tuple[Tensor, dict[str, float]]:
        """Compute advantages and diagnostics over the rows of all policies together, so that groups may span policies.

        `chosen`: indices of the rows that take part. Their scores are added to `running`; all other rows get an
        advantage of 0.
        """
        excluded = torch.ones(len(columns.keys), dtype=torch.bool)
        excluded[list(chosen)] = False
        if bool(excluded.all()):
            return torch.zeros(len(columns.keys)), {}
        rows = AdvantageInput.of(columns.keys, columns.tags, columns.scores)
        rows = replace(
            rows,
            tokens=columns.tokens,
            padding=excluded,
            agents=self._agents,
            team_weight=self._reward.team or 0.0,
            local_weight=self._reward.local or 0.0,
        )
        output = compute_advantages(self._estimator, rows, self._options, running)
        return output.advantages, output.metrics

    def tasks_with_advantage(self, rows: Rows, trained: Collection[str]) -> set[str]:
        """Return the uids of the tasks in which a row of a policy in `trained` has an advantage.

        Scores of earlier steps are not used, because an estimator that remembers scores cannot have a filter.
        """
        columns = read_columns(rows)
        advantages, _ = self.of_rows(columns, range(len(rows)))
        each = zip(columns.keys, columns.tags, advantages.tolist(), strict=True)
        return {key.uid for key, tag, value in each if value != 0 and tag.trainable and tag.policy in trained}


def write_advantages(batch: Rows, columns: Columns, per_row: Tensor, parts: Mapping[str, PolicyRows]) -> None:
    """Write the advantages of every row; padding gets zeros. Untrained rows need advantages for the metrics."""
    of_row = dict(zip(batch.keys, zip(per_row, columns.masks, strict=True), strict=True))
    for part in parts.values():
        advantages, masks = zip(*(of_row.pop(key, PADDING) for key in part.batch.keys), strict=True)
        part.advantages = torch.stack(advantages)
        own = part.of_tokens or as_nested(part.advantages, masks)
        part.batch = data_plane.write(part.batch, {**part.changed, **part.weights.fields, **own})
    if rest := [i for i, key in enumerate(batch.keys) if key in of_row]:
        data_plane.write(data_plane.select(batch, rest), as_nested(per_row[rest], [columns.masks[i] for i in rest]))


# Advantage and mask of a padding row.
PADDING = torch.tensor(0.0), torch.zeros(1, dtype=torch.int64)


def as_nested(per_row: Tensor, masks: Sequence[Tensor]) -> dict[str, Tensor]:
    """Return the fields in which every token has its row's advantage."""
    tokens = to_tokens(per_row, torch.nested.as_nested_tensor(list(masks), layout=torch.jagged))
    return {row.ADVANTAGES: tokens, row.RETURNS: tokens}


def gae(part: PolicyRows, values: Tensor, gamma: float, lam: float) -> None:
    """Write verl's generalised advantage estimates (GAE) into a policy's rows. Each row is one trajectory.

    The score of a row becomes the reward of the row's last trained token. verl's formula skips untrained tokens, so it
    would lose a score on a final observation. `values` [N, T]: the critic's value of each token. Advantages are
    whitened over all rows, as in verl.
    """
    nested = part.data[row.RESPONSE_MASK]
    columns = {row.VALUES: values, **part.data.select(*COLUMNS)}
    rows = TensorDict(columns, len(part.batch)).to_padded_tensor()
    values, mask, scores = rows[row.VALUES], rows[row.RESPONSE_MASK], rows[row.SCORES]
    last = (mask * torch.arange(mask.shape[-1])).argmax(-1, keepdim=True)
    rewards = torch.zeros_like(scores).scatter(-1, last, scores.sum(-1, keepdim=True))
    advantages, returns = torch.zeros_like(rewards), values
    # verl cannot whiten fewer than two tokens. A policy whose rows were all rejected learns nothing from the step.
    if int(mask.sum()) >= 2:
        advantages, returns = compute_gae_advantage_return(rewards, values, mask, gamma, lam)
        earned, errors = returns[mask.bool()], (returns - values)[mask.bool()]
        part.metrics["critic/values/mean"] = float(values[mask.bool()].mean())
        part.metrics["critic/vf_explained_var"] = float(1 - errors.var() / (earned.var() + 1e-5))
    written = {row.ADVANTAGES: advantages, row.RETURNS: returns}
    part.of_tokens = {name: response_to_nested(tokens, nested) for name, tokens in written.items()}
    part.advantages = (advantages * mask).sum(-1) / mask.sum(-1).clamp(min=1)


def without_zero_advantage(part: PolicyRows, updates: int, multiple: int) -> list[int]:
    """Return the indices of the rows with an advantage, filled up to a multiple of `multiple`.

    The fillers are rows that add nothing to the loss. Padding is preferred, because it is short. But each optimiser
    step needs at least one real row.
    """
    padding = [i for i, tag in enumerate(part.batch.tags) if is_padding(tag)]
    zero = [i for i, tag in enumerate(part.batch.tags) if not is_padding(tag) and float(part.advantages[i]) == 0.0]
    kept = sorted(set(range(len(part.batch))) - {*padding, *zero})
    min_filler = max(0, updates - len(kept))
    filler = zero[:min_filler] + padding + zero[min_filler:]
    count = -(len(kept) + min_filler) % multiple + min_filler
    return sorted(kept + filler[:count])


def kept_share(counted: Tensor, kept: Sequence[int], mode: str) -> float:
    """Return the share of tokens in the kept rows; 1 if the loss mode does not average over all tokens.

    The loss divides its number of tokens by this share, so that its mean counts the tokens of skipped rows, too.
    `counted`: each row's number of tokens in verl's divisor.
    """
    return 1.0 if mode != "token-mean" else float(counted[list(kept)].sum() / counted.sum().clamp(min=1))
