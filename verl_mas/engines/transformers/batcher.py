"""Continuous batching over a Hugging Face causal LM: plain torch, no Ray, no threads."""

import random
from bisect import bisect_left
from collections import defaultdict, deque
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from math import isnan, nan
from operator import itemgetter
from typing import cast

import torch
from torch import nn
from transformers import DynamicCache, LogitsProcessorList, PreTrainedModel, RepetitionPenaltyLogitsProcessor
from transformers.cache_utils import Cache, DynamicLayer
from transformers.generation.logits_process import TemperatureLogitsWarper, TopKLogitsWarper, TopPLogitsWarper

from verl_mas.engines.sampling import stop_window
from verl_mas.engines.transformers.images import Sight, visual_inputs
from verl_mas.engines.transformers.lora import Adapters
from verl_mas.engines.transformers.request import FinishReason, RequestSampling, Sample
from verl_mas.errors import ConfigError, EngineLost, RequestError

COLUMNS_AT_ONCE = 64  # the cache grows by a multiple of this, so that it is not copied for every longer request


@dataclass(frozen=True)
class Capacity:
    """Limits: rows that run at the same time, memory of their keys and values, tokens of one prefill."""

    rows: int = 256
    cache_bytes: int = 2 << 30
    prefill_tokens: int = 4096


class ContinuousBatcher:
    """Run many requests in one batch, which they join and leave between any two tokens.

    `submit` queues a request; `step` samples one more token for every running sample. A prompt is prefilled without its
    last token, which is the input of the sample's first step, so only `step` ever samples.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        *,
        max_length: int,
        capacity: Capacity = Capacity(),
        eos: Iterable[int] = (),
        decode: Callable[[list[int]], str],
        seed: int = 0,
        adapters: Adapters | None = None,
    ):
        self.model = model.eval()
        self.max_length = _checked_length(model, max_length)
        self.max_rows = capacity.rows
        self.max_cells = max(capacity.cache_bytes // _bytes_per_token(model), 1)
        self.prefill_tokens = capacity.prefill_tokens
        self._eos = frozenset(eos)
        self.decode = decode
        self.seeds = random.Random(seed)
        self._vocabulary = cast(nn.Embedding, model.get_input_embeddings()).num_embeddings
        # `step` takes requests from these queues in its own thread. Continued replies come first.
        self._resumed: deque[Sample] = deque()
        self._waiting: deque[Sample] = deque()
        self._running: list[Sample] = []
        self._cache = RowCache()
        self.adapters = adapters or Adapters(model, {})

    @property
    def idle(self) -> bool:
        return not self._resumed and not self._waiting and not self._running

    def submit(
        self,
        prompt: Sequence[int],
        sampling: RequestSampling,
        adapter: str | None = None,
        drawn: int = 0,
        sight: Sight | None = None,
    ) -> Sample:
        """Queue a request. A request that cannot be served is refused here, before it touches the batch.

        The last `drawn` tokens of the prompt are the first tokens of the reply, which was aborted and is continued now.
        Such a request comes before requests that never ran.
        """
        self._check(prompt, sampling)
        self.adapters.require(adapter)
        seed = self.seeds.getrandbits(64) if sampling.seed is None else sampling.seed
        sample = Sample(tuple(prompt), sampling, random.Random(f"{seed}/0"), adapter, drawn, sight)
        (self._resumed if drawn else self._waiting).append(sample)
        return sample

    @torch.inference_mode()
    def step(self) -> list[Sample]:
        """Admit waiting requests, then sample one token per row. Returns the samples that finished."""
        self._admit()
        if not self._running:
            return []
        tokens, log_probs = sample_tokens(self._next_logits(), self._running)
        finished = []
        for row in reversed(range(len(self._running))):
            sample = self._running[row]
            sample.tokens.append(tokens[row])
            sample.log_probs.append(log_probs[row])
            sample.finish_reason = "failed" if isnan(log_probs[row]) else self._finish_reason(sample)
            if sample.finish_reason:
                finished.append(sample)
                self._leave(row)
        return finished

    @torch.inference_mode()
    def abort(self, samples: Collection[Sample] | None = None) -> list[Sample]:
        """End the given samples immediately; None ends all samples. Return the samples that had not finished."""
        aborted = [s for s in (*self._running, *self._resumed, *self._waiting) if samples is None or s in samples]
        for sample in aborted:
            sample.finish_reason = "aborted"
        for row in reversed(range(len(self._running))):
            if self._running[row].finish_reason:
                self._leave(row)
        self._resumed = deque(s for s in self._resumed if not s.finish_reason)
        self._waiting = deque(s for s in self._waiting if not s.finish_reason)
        return aborted

    def release_memory(self) -> None:
        """Free the cache's memory. Call this only while `idle`."""
        assert self.idle, "requests still need the cache"
        self._cache.clear()

    def _check(self, prompt: Sequence[int], sampling: RequestSampling) -> None:
        if not prompt:
            raise RequestError("an empty prompt", rule="a prompt has a token", fix="send at least one token")
        if len(prompt) + sampling.max_tokens > self.max_length:
            value = f"a prompt of {len(prompt)} tokens with max_tokens={sampling.max_tokens}"
            rule = f"prompt and reply must fit the {self.max_length} tokens of the engine"
            fix = "shorten the prompt, ask for fewer tokens, or raise rollout.max_model_len"
            raise RequestError(value, rule=rule, fix=fix)
        if not 0 <= min(prompt) <= max(prompt) < self._vocabulary:
            value = f"token ids from {min(prompt)} to {max(prompt)}"
            rule = f"the model knows ids from 0 to {self._vocabulary - 1}"
            raise RequestError(value, rule=rule, fix="use the model's own tokenizer")

    def _admit(self) -> None:
        joining = self._admissible()
        if not joining:
            return
        # Sort, so that equal prompts of one adapter are prefilled once, and similar lengths need little padding.
        joining.sort(key=lambda sample: (len(sample.prompt), sample.names, sample.adapter or ""))
        columns = max(sample.max_length for sample in (*self._running, *joining))
        self._cache.reserve(len(self._running) + len(joining), -(-columns // COLUMNS_AT_ONCE) * COLUMNS_AT_ONCE)
        batch: list[Sample] = []
        for sample in joining:
            if batch and (len(batch) + 1) * len(sample.prompt) > self.prefill_tokens:
                self._prefill(batch)
                batch = []
            batch.append(sample)
        self._prefill(batch)

    def _admissible(self) -> list[Sample]:
        """Take the next waiting samples that fit, in their order. A single sample always fits."""
        joining: list[Sample] = []
        columns = max((sample.max_length for sample in self._running), default=0)
        while queue := self._resumed or self._waiting:
            rows = len(self._running) + len(joining) + 1
            columns = max(columns, queue[0].max_length)
            if rows > 1 and (rows > self.max_rows or rows * columns > self.max_cells):
                break
            joining.append(queue.popleft())
        return joining

    def _prefill(self, joining: list[Sample]) -> None:
        """Prefill all but the last token of each prompt. Prompts are padded on the right, where a causal model does not
        attend to the padding.

        A prefix that a running row already has is copied from that row. So the prompt of a group is computed once, and
        so is the common prefix of all prompts of an agent.
        """
        # Prompts are equal only under the same adapter, because each adapter computes different keys and values.
        prefixes = [(sample.adapter, sample.names[:-1]) for sample in joining]
        unique = dict(zip(prefixes, joining, strict=True))
        sources, known = zip(*(self._shared(*prefix) for prefix in unique), strict=True)
        new = [list(sample.prompt[length:-1]) for sample, length in zip(unique.values(), known, strict=True)]
        prefilled = self._cache.copy(sources, max(known))
        if width := max(map(len, new)):
            ids = torch.tensor([[*tokens, *[0] * (width - len(tokens))] for tokens in new], device=self.model.device)
            self.adapters.aim([adapter for adapter, _ in unique])
            seen = [(sample.sight, length) for sample, length in zip(unique.values(), known, strict=True)]
            inputs = self._after(known, width) | visual_inputs(seen, width, self.model.device)
            self.model.base_model(input_ids=ids, past_key_values=prefilled, use_cache=True, **inputs)
        number = {prefix: row for row, prefix in enumerate(unique)}
        rows = [number[prefix] for prefix in prefixes]
        longest = max(len(prompt) for _, prompt in unique)
        self._cache.append(prefilled, rows, [known[row] for row in rows], longest)
        self._running.extend(joining)

    def _shared(self, adapter: str | None, prompt: tuple[int, ...]) -> tuple[int, int]:
        """Find the running row that shares the longest prefix with this prompt, and the length of the prefix."""
        # Skip rows that have tokens of earlier weights, because the keys and values of such rows are outdated.
        rows = (
            (number, _common(prompt, row.names[: row.cached]))
            for number, row in enumerate(self._running)
            if row.adapter == adapter and not row.versions
        )
        return max(rows, key=itemgetter(1), default=(0, 0))

    def _after(self, known: Sequence[int], width: int) -> dict[str, torch.Tensor]:
        """Positions and mask for `width` new tokens per row, after `known` tokens."""
        if not any(known):
            return {}
        device, lengths, most = self.model.device, torch.tensor(known)[:, None, None], max(known)
        columns, new = torch.arange(most + width), torch.arange(width)[:, None]
        seen = torch.where(columns < most, columns < lengths, columns - most <= new)
        return {
            "position_ids": (lengths[:, 0] + new.T).to(device),
            "attention_mask": self._mask(seen[:, None].to(device)),
        }

    def _mask(self, seen: torch.Tensor) -> torch.Tensor:
        mask = torch.zeros(seen.shape, dtype=self.model.dtype, device=seen.device)
        return mask.masked_fill_(~seen, torch.finfo(self.model.dtype).min)

    def _next_logits(self) -> torch.Tensor:
        device = self.model.device
        positions = torch.tensor([sample.cached for sample in self._running], device=device)
        columns = max(sample.cached for sample in self._running) + 1
        self._cache.aim(positions, columns)
        seen = torch.arange(columns, device=device) <= positions[:, None]
        last = torch.tensor([[sample.last_token, sample.position] for sample in self._running], device=device)
        self.adapters.aim([sample.adapter for sample in self._running])
        output = self.model(
            input_ids=last[:, :1],
            position_ids=last[:, 1:],
            attention_mask=self._mask(seen[:, None, None, :]),
            past_key_values=self._cache,
            use_cache=True,
        )
        logits: torch.Tensor = output.logits[:, -1]
        return logits

    def _finish_reason(self, sample: Sample) -> FinishReason | None:
        sampling, token = sample.sampling, sample.tokens[-1]
        if token in sampling.stop_token_ids or (token in self._eos and not sampling.ignore_eos):
            return "stop"
        if sampling.stop:
            tail = self.decode(sample.last_of_reply(stop_window(sampling.stop)))
            if any(stop in tail for stop in sampling.stop):
                return "stop"
        if len(sample.tokens) >= sampling.max_tokens:
            return "length"
        return None

    def _leave(self, row: int) -> None:
        self._cache.remove(row)
        last = self._running.pop()
        if row < len(self._running):
            self._running[row] = last


def _checked_length(model: PreTrainedModel, max_length: int) -> int:
    config = model.config.get_text_config()
    limit = getattr(config, "max_position_embeddings", None) or max_length
    if max_length > limit:
        fix = f"set actor_rollout_ref.rollout.max_model_len to {limit} or less"
        raise ConfigError(f"max_model_len={max_length}", rule=f"the model has {limit} positions", fix=fix)
    kinds = set(getattr(config, "layer_types", None) or ["full_attention"])
    window = getattr(config, "sliding_window", None) or max_length
    if kinds - {"full_attention", "sliding_attention"} or window < max_length:
        value = f"{config.model_type} with layers {', '.join(sorted(kinds))} and sliding window {window}"
        rule = f"rollout.name=transformers serves models whose layers see the whole {max_length} tokens"
        fix = "use rollout.name=vllm or sglang, or a rollout.max_model_len within the window"
        raise ConfigError(value, rule=rule, fix=fix)
    return max_length


def _common(one: tuple[int, ...], other: tuple[int, ...]) -> int:
    """Return the length of the common prefix."""
    lengths = range(1, min(len(one), len(other)) + 1)
    return bisect_left(lengths, True, key=lambda length: one[:length] != other[:length])


def _bytes_per_token(model: PreTrainedModel) -> int:
    config = model.config.get_text_config()
    heads = getattr(config, "num_key_value_heads", None) or config.num_attention_heads
    size = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    cells: int = 2 * config.num_hidden_layers * heads * size
    return cells * model.dtype.itemsize


def sample_tokens(logits: torch.Tensor, rows: Sequence[Sample]) -> tuple[list[int], list[float]]:
    """Return the next token of each row, and its log-prob under the distribution it is sampled from.

    This is the distribution after temperature, top-k and top-p (vLLM's `processed_logprobs`). For a greedy row it is
    the model's own distribution. If a row has no valid distribution, its log-prob is NaN.
    """
    log_probs = torch.log_softmax(_processed(logits.float(), rows), dim=-1)
    failed = log_probs[:, 0].isnan()  # one logit of NaN or +inf makes the whole row NaN
    if failed.any():
        if logits.isnan().any(dim=-1).all():
            raise EngineLost("the model's logits are not a number: its weights are broken")
        log_probs[failed] = 0
    tokens = log_probs.argmax(dim=-1)
    drawn = [number for number, row in enumerate(rows) if not row.sampling.greedy]
    if drawn:
        chances = torch.tensor([rows[number].generator.random() for number in drawn], dtype=torch.float64)
        part = log_probs if len(drawn) == len(rows) else log_probs[drawn]
        tokens[drawn] = _at(part, chances.to(logits.device))
    chosen = log_probs.gather(1, tokens[:, None])[:, 0].masked_fill(failed, nan)
    return tokens.tolist(), chosen.tolist()


def _at(log_probs: torch.Tensor, chances: torch.Tensor) -> torch.Tensor:
    """Find the token at which the cumulative distribution passes each chance in [0, 1).

    Each token takes one number from its row's own generator, so other rows of the batch cannot change the token.
    """
    cumulative = log_probs.exp().cumsum(dim=-1, dtype=torch.float64)
    # Stay strictly below the total, so that the token has a probability above 0.
    target = chances[:, None] * cumulative[:, -1:] * (1 - 2**-50)
    return torch.searchsorted(cumulative, target, right=True)[:, 0]


def _processed(logits: torch.Tensor, rows: Sequence[Sample]) -> torch.Tensor:
    """Apply transformers' own processors, once for all rows with equal settings."""
    groups: dict[tuple[float | None, ...], list[int]] = defaultdict(list)
    for number, row in enumerate(rows):
        sampling = row.sampling
        settings = (0.0,) if sampling.greedy else (sampling.temperature, sampling.top_k, sampling.top_p)
        # A repetition penalty depends on the row's own tokens, so a row with a penalty is a group of its own.
        own = number if sampling.repetition_penalty != 1 else None
        groups[(*settings, own)].append(number)
    if len(groups) == 1:
        return _process(logits, rows[0])
    processed = torch.empty_like(logits)
    for numbers in groups.values():
        processed[numbers] = _process(logits[numbers], rows[numbers[0]])
    return processed


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


class RowCache(Cache):
    """A cache in which row i has the keys and values of the i-th running sequence, from column 0 without gaps.

    Each layer has a buffer for keys and a buffer for values, `[capacity rows, heads, capacity columns, head size]`. The
    first `rows` rows are in use. A decode step writes one column per row in place, each row at its own position.
    """

    def __init__(self) -> None:
        super().__init__(layer_class_to_replicate=DynamicLayer)
        self.rows = 0
        self._capacity = (0, 0)
        self._buffers: list[tuple[torch.Tensor, torch.Tensor]] = []
        self._positions = torch.empty(0, dtype=torch.long)
        self._columns = 0

    def reserve(self, rows: int, columns: int) -> None:
        """Allocate at least `rows` rows of at least `columns` columns. No row in use may have more columns."""
        if rows > self._capacity[0] or columns > self._capacity[1]:
            self._capacity = (rows, columns)
            for number, (keys, values) in enumerate(self._buffers):
                # Resize one layer after the other, so that only one layer at a time is held twice.
                self._buffers[number] = self._resized(keys), self._resized(values)

    def copy(self, rows: Sequence[int], columns: int) -> DynamicCache:
        """Copy the first columns of rows."""
        copied = DynamicCache()
        for number, buffers in enumerate(self._buffers if columns else ()):
            keys, values = (buffer[list(rows), :, :columns] for buffer in buffers)
            copied.update(keys, values, number)
        return copied

    def append(self, prefilled: Cache, sources: Sequence[int], known: Sequence[int], longest: int) -> None:
        """Add a row for each entry of `sources`. An entry is the index of a row of `prefilled`.

        In `prefilled`, the row for entry i has `known[i]` copied columns, then a gap up to the largest number in
        `known`, then its new columns. The added rows have no gaps; the longest of them has `longest` columns.
        """
        new, most = slice(self.rows, self.rows + len(sources)), max(known)
        columns, lengths = torch.arange(longest), torch.tensor(known)[:, None]
        # Columns past the end of a row may hold anything, because they are written before they are read.
        places = torch.where(columns < lengths, columns, columns + most - lengths)
        places.clamp_(max=max(prefilled.get_seq_length() - 1, 0))
        for number, layer in enumerate(cast("list[DynamicLayer]", prefilled.layers)):
            assert layer.keys is not None and layer.values is not None
            for buffer, states in zip(self._buffer(number, layer.keys), (layer.keys, layer.values), strict=True):
                rows = states[torch.tensor(sources)[:, None], :, places].transpose(1, 2)
                buffer[new, :, :longest] = rows
        self.rows = new.stop

    def remove(self, row: int) -> None:
        """Drop a row; the last row takes its index."""
        self.rows -= 1
        if row != self.rows:
            for buffers in self._buffers:
                for buffer in buffers:
                    buffer[row] = buffer[self.rows]

    def clear(self) -> None:
        """Drop all rows and free the memory."""
        self._buffers, self.rows, self._capacity = [], 0, (0, 0)

    def aim(self, positions: torch.Tensor, columns: int) -> None:
        """Set the column that the next forward pass writes in each row, and the number of columns that it reads."""
        self._positions, self._columns = positions, columns

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, layer_idx: int, *args: object, **kwargs: object
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Store the new column, and return all columns; called by the model's attention."""
        keys, values = self._buffer(layer_idx, key_states)
        rows = torch.arange(self.rows, device=keys.device)
        keys[rows, :, self._positions] = key_states[:, :, 0]
        values[rows, :, self._positions] = value_states[:, :, 0]
        return keys[: self.rows, :, : self._columns], values[: self.rows, :, : self._columns]

    def get_seq_length(self, layer_idx: int = 0) -> int:
        return self._columns

    def _buffer(self, number: int, like: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        while len(self._buffers) <= number:
            self._buffers.append((self._allocated(like), self._allocated(like)))
        return self._buffers[number]

    def _allocated(self, like: torch.Tensor) -> torch.Tensor:
        # Use zeros, because a masked column is still multiplied by 0, and 0 x NaN is NaN.
        rows, columns = self._capacity
        return like.new_zeros(rows, like.shape[1], columns, like.shape[3])

    def _resized(self, old: torch.Tensor) -> torch.Tensor:
        new = self._allocated(old)
        columns = min(old.shape[2], new.shape[2])
        new[: self.rows, :, :columns] = old[: self.rows, :, :columns]
        return new
