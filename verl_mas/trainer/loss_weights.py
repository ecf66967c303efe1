"""How much a row counts in the loss of its policy: `mas.loss.weighting`.

In two of its modes verl divides a sum over rows by a number that its caller gives. Here all optimiser steps of a
training step have the same one: the total of the training step, divided by their number. So what the rows add up to
over optimiser steps, ranks and micro batches does not depend on which rows are in which.

`on_policy` is the other change of verl's loss: it needs no old log-probs.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import torch
from tensordict import TensorDict
from torch import Tensor
from verl.workers.utils.padding import response_from_nested

from verl_mas.advantage.kernel import offsets_of, per_token
from verl_mas.config.merge import LOSS_MODES
from verl_mas.config.schema import Weighting
from verl_mas.row import AGENT, LOSS_WEIGHTS, OLD_LOG_PROBS, RESPONSE_MASK, RowKey, TagValues, is_padding

# As verl calls a loss: the outputs of the model, nested over tokens, and the rows; the loss and its metrics.
Outputs: TypeAlias = dict[str, Tensor]
Loss: TypeAlias = Callable[..., tuple[Tensor, dict[str, object]]]


@dataclass(frozen=True)
class RowWeights:
    """How the rows of a policy count in one training step."""

    total: float  # what the sum over all rows of the step is divided by
    of_rows: Tensor | None = None  # what the gradient of each row is multiplied by; None: by nothing

    @property
    def fields(self) -> dict[str, Tensor]:
        return {} if self.of_rows is None else {LOSS_WEIGHTS: self.of_rows}


def step_weights(
    weighting: Weighting | None, keys: Sequence[str], tags: Sequence[TagValues], tokens: Tensor
) -> RowWeights:
    """`tokens` [N]: how many tokens of each row are trained. Padding, and a row without such tokens, does not count."""
    real = torch.tensor([not is_padding(tag) for tag in tags])
    if weighting is None:
        return RowWeights(int(real.sum()))
    # What verl's mode adds up of a row: its tokens, or their mean.
    size = torch.where(real, tokens if LOSS_MODES[weighting] == "seq-mean-token-sum" else (tokens > 0).long(), 0)
    total = max(1, int(size.sum()))  # Without any, the loss is 0.
    if weighting not in _UNITS:
        return RowWeights(total)
    unit, sizes = _UNITS[weighting], size.tolist()
    units = {row: unit(RowKey.parse(keys[row]), tags[row]) for row, its in enumerate(sizes) if its}
    size_of: Counter[Hashable] = Counter()
    for row, its in units.items():
        size_of[its] += sizes[row]
    weights = torch.zeros(len(keys))
    for row, its in units.items():
        weights[row] = total / (len(size_of) * size_of[its])
    return RowWeights(total, weights)


_UNITS: Mapping[str, Callable[[RowKey, TagValues], Hashable]] = {
    "agent": lambda key, tag: str(tag[AGENT]),
    "agent_token": lambda key, tag: str(tag[AGENT]),
    "session": lambda key, tag: (key.uid, key.session),
}


def weighs_rows(weighting: Weighting | None) -> bool:
    """Whether the loss of a policy is `weighted`: rows count differently."""
    return weighting in _UNITS


def weighted(
    model_output: Outputs, data: TensorDict, dp_group: object = None, *, loss: Loss
) -> tuple[Tensor, dict[str, object]]:
    """verl's loss, with the gradient of each row times its weight, in every term: policy, KL and entropy.

    Values stay as they are, so that what depends on them (clipping, selection by covariance, the metrics) does, too.
    """
    weights = data[LOSS_WEIGHTS]
    outputs = dict(model_output)
    for name in _DIFFERENTIATED:
        if (values := model_output.get(name)) is not None:
            flat = values.values()
            constant = flat.detach()
            # The same values, whose gradient is that of `values` times the weight of the row.
            scaled = constant + per_token(weights, values) * (flat - constant)
            outputs[name] = torch.nested.nested_tensor_from_jagged(scaled, offsets_of(values))
    return loss(model_output=outputs, data=data, dp_group=dp_group)


_DIFFERENTIATED = ("log_probs", "entropy")


def on_policy(
    model_output: Outputs, data: TensorDict, dp_group: object = None, *, loss: Loss
) -> tuple[Tensor, dict[str, object]]:
    """verl's loss with the log-probs of this forward pass, detached, as the old ones: every ratio is exactly 1.

    Dropout is the same in both, where a pass without dropout would make noise of the ratios.
    """
    own = response_from_nested(model_output["log_probs"].detach(), data[RESPONSE_MASK])
    with_old = data.copy()
    with_old[OLD_LOG_PROBS] = own
    return loss(model_output=model_output, data=with_old, dp_group=dp_group)
