"""Weights of rows in the loss of their policy (`mas.loss.weighting`).

In two of its loss modes verl divides a sum over rows by a number that its caller passes. verl-mas passes the same
number in all optimiser steps of a training step: the step's total, divided by the number of optimiser steps.
So the summed loss does not depend on how rows are distributed over optimiser steps, ranks and micro batches.

`on_policy` is a separate change of verl's loss. With it, no separate pass has to compute old log-probs.
"""

from collections import Counter
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import torch
from tensordict import TensorDict
from torch import Tensor
from verl.utils import tensordict_utils as tu
from verl.workers.utils.padding import response_from_nested

from verl_mas.advantage.kernel import offsets_of, per_token
from verl_mas.config.merge import LOSS_MODES
from verl_mas.config.schema import Weighting
from verl_mas.verl_ import row
from verl_mas.verl_.row import RowKey, TagValues, is_padding

# Signature of verl's loss functions. A loss function gets the model's outputs, as nested tensors over tokens, and the
# rows; it returns the value of the loss and its metrics.
Outputs: TypeAlias = dict[str, Tensor]
Result: TypeAlias = tuple[Tensor, dict[str, object]]
Loss: TypeAlias = Callable[..., Result]


@dataclass(frozen=True)
class RowWeights:
    """Weights of a policy's rows in one training step."""

    total: float  # divisor of the sum over all rows of the step
    of_rows: Tensor | None = None  # factor of each row's gradient; None: no factors

    @property
    def fields(self) -> dict[str, Tensor]:
        return {} if self.of_rows is None else {row.LOSS_WEIGHTS: self.of_rows}


def step_weights(
    weighting: Weighting | None, keys: Sequence[str], tags: Sequence[TagValues], tokens: Tensor
) -> RowWeights:
    """Compute the weights of rows. `tokens` [N]: number of trained tokens per row. Padding, and rows without trained
    tokens, do not count."""
    real = torch.tensor([not is_padding(tag) for tag in tags])
    if weighting is None:
        return RowWeights(int(real.sum()))
    # Size of a row in the sum of verl's loss mode: its trained tokens, or 1 if the mode averages over a row's tokens.
    size = torch.where(real, tokens if LOSS_MODES[weighting] == "seq-mean-token-sum" else (tokens > 0).long(), 0)
    total = max(1, int(size.sum()))  # avoids a division by 0; without trained tokens, the loss is 0
    if weighting not in _UNITS:
        return RowWeights(total)
    unit, sizes = _UNITS[weighting], size.tolist()
    units = {i: unit(RowKey.parse(keys[i]), tags[i]) for i, its in enumerate(sizes) if its}
    size_of: Counter[Hashable] = Counter()
    for i, its in units.items():
        size_of[its] += sizes[i]
    weights = torch.zeros(len(keys))
    for i, its in units.items():
        weights[i] = total / (len(size_of) * size_of[its])
    return RowWeights(total, weights)


_UNITS: Mapping[str, Callable[[RowKey, TagValues], Hashable]] = {
    "agent": lambda key, tag: str(tag[row.AGENT]),
    "agent_token": lambda key, tag: str(tag[row.AGENT]),
    "session": lambda key, tag: (key.uid, key.session),
}


def weighs_rows(weighting: Weighting | None) -> bool:
    """Whether rows have different weights, so that the policy needs the loss `weighted`."""
    return weighting in _UNITS


def weighted(model_output: Outputs, data: TensorDict, dp_group: object = None, *, loss: Loss) -> Result:
    """Compute verl's loss with each row's gradient times its weight in every term: policy, KL and entropy.

    The values of log-probs and entropy stay unchanged, so clipping, selection by covariance and metrics, which depend
    on them, do not change.
    """
    weights = data[row.LOSS_WEIGHTS]
    outputs = dict(model_output)
    for name in _DIFFERENTIATED:
        if (values := model_output.get(name)) is not None:
            flat = values.values()
            constant = flat.detach()
            # Equal to `values`, but the gradient is multiplied by the weight of the row.
            scaled = constant + per_token(weights, values) * (flat - constant)
            outputs[name] = torch.nested.nested_tensor_from_jagged(scaled, offsets_of(values))
    return loss(model_output=outputs, data=data, dp_group=dp_group)


_DIFFERENTIATED = ("log_probs", "entropy")


def over_all_rows(model_output: Outputs, data: TensorDict, dp_group: object = None, *, loss: Loss) -> Result:
    """Compute verl's loss; its mean over tokens also counts the tokens of skipped rows."""
    data = data.copy()
    tu.assign_non_tensor(data, batch_num_tokens=data["batch_num_tokens"] / tu.get(data, row.KEPT_SHARE, default=1.0))
    return loss(model_output=model_output, data=data, dp_group=dp_group)


def on_policy(model_output: Outputs, data: TensorDict, dp_group: object = None, *, loss: Loss) -> Result:
    """Compute verl's loss with the detached log-probs of this forward pass as old log-probs, so every ratio is 1.

    Old and new log-probs thus share one dropout mask. A separate pass would compute old log-probs without dropout, so
    the dropout of the update would add noise to the ratios.
    """
    data = data.copy()
    data[row.OLD_LOG_PROBS] = response_from_nested(model_output["log_probs"].detach(), data[row.RESPONSE_MASK])
    return loss(model_output=model_output, data=data, dp_group=dp_group)
