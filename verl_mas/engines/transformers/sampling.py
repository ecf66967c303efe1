"""Choose the next token of every row, each with its own settings and its own random generator."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import cast

import torch
from transformers import LogitsProcessorList, RepetitionPenaltyLogitsProcessor
from transformers.generation.logits_process import (
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from verl_mas.engines.transformers.request import Sample, Sampling
from verl_mas.errors import EngineLost


def choose(logits: torch.Tensor, rows: Sequence[Sample]) -> tuple[list[int], list[float]]:
    """The next token of each row and its log-prob under the distribution it was drawn from.

    That distribution is the one after temperature, top-k and top-p (vLLM's `processed_logprobs`); a greedy
    row reports the model's own.
    """
    log_probs = torch.log_softmax(_processed(logits.float(), rows), dim=-1)
    if log_probs[:, 0].isnan().any():  # one bad logit spoils the whole row
        raise EngineLost("the model's logits are not a number: its weights are broken")
    tokens = log_probs.argmax(dim=-1)
    drawn = [number for number, row in enumerate(rows) if not row.sampling.greedy]
    if drawn:
        chances = torch.tensor([rows[number].generator.random() for number in drawn], dtype=torch.float64)
        part = log_probs if len(drawn) == len(rows) else log_probs[drawn]
        tokens[drawn] = _at(part, chances.to(logits.device))
    chosen = log_probs.gather(1, tokens[:, None])[:, 0]
    return tokens.tolist(), chosen.tolist()


def _at(log_probs: torch.Tensor, chances: torch.Tensor) -> torch.Tensor:
    """The token at which the cumulative distribution passes each chance in [0, 1).

    One number per token, from the row's own generator: other rows of the batch cannot change it.
    """
    cumulative = log_probs.exp().cumsum(dim=-1, dtype=torch.float64)
    # Strictly below the total, so that the token found has a probability.
    target = chances[:, None] * cumulative[:, -1:] * (1 - 2**-50)
    return torch.searchsorted(cumulative, target, right=True)[:, 0]


def _processed(logits: torch.Tensor, rows: Sequence[Sample]) -> torch.Tensor:
    """Rows with equal settings go through transformers' own processors together."""
    groups: dict[tuple[float | None, ...], list[int]] = defaultdict(list)
    for number, row in enumerate(rows):
        # A penalty depends on the row's own tokens, so such a row is a group of its own.
        own = number if row.sampling.repetition_penalty != 1 else None
        groups[(*_settings(row.sampling), own)].append(number)
    if len(groups) == 1:
        return _process(logits, rows[0])
    for numbers in groups.values():
        logits[numbers] = _process(logits[numbers], rows[numbers[0]])
    return logits


def _settings(sampling: Sampling) -> tuple[float, ...]:
    if sampling.greedy:
        return (0.0, sampling.repetition_penalty)
    return (sampling.temperature, sampling.repetition_penalty, sampling.top_k, sampling.top_p)


def _process(logits: torch.Tensor, row: Sample) -> torch.Tensor:
    sampling, text = row.sampling, torch.empty(len(logits), 0, dtype=torch.long)
    processors = LogitsProcessorList()
    if sampling.repetition_penalty != 1:
        text = torch.tensor([[*row.prompt, *row.tokens]], device=logits.device)
        processors.append(RepetitionPenaltyLogitsProcessor(sampling.repetition_penalty))
    if not sampling.greedy:
        if sampling.temperature != 1:
            processors.append(TemperatureLogitsWarper(sampling.temperature))
        if sampling.top_k > 0:
            processors.append(TopKLogitsWarper(sampling.top_k))
        if sampling.top_p < 1:
            processors.append(TopPLogitsWarper(sampling.top_p))
    return processors(cast(torch.LongTensor, text), cast(torch.FloatTensor, logits))
