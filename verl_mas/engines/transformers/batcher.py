"""Continuous batching over a Hugging Face causal LM: plain torch, no Ray, no threads."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import cast

import torch
from torch import nn
from transformers import DynamicCache, PreTrainedModel

from verl_mas.engines.transformers.cache import RowCache
from verl_mas.engines.transformers.lora import Adapters
from verl_mas.engines.transformers.request import FinishReason, Job, Sample, Sampling
from verl_mas.engines.transformers.sampling import choose
from verl_mas.errors import ConfigError, EngineLost, RequestError

COLUMNS_AT_ONCE = 64
"""The cache grows by this many columns, so that it is not copied for every longer request."""


class ContinuousBatcher:
    """Runs many requests in one batch; requests join and leave it at every token.

    `submit` queues a request, `step` gives every running sample one more token. A prompt is prefilled
    without its last token; that one is fed by the sample's first step, so only `step` ever samples.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        *,
        max_length: int,
        max_rows: int = 256,
        cache_bytes: int = 2 << 30,
        prefill_tokens: int = 4096,
        eos: Iterable[int] = (),
        decode: Callable[[list[int]], str] | None = None,
        seed: int = 0,
        adapters: Adapters | None = None,
    ):
        self.model = model.eval()
        self.max_length = _checked_length(model, max_length)
        self.max_rows = max_rows
        self.max_cells = max(cache_bytes // _bytes_per_token(model), 1)
        self.prefill_tokens = prefill_tokens
        self._eos = frozenset(eos)
        self.decode = decode
        self._seeds = random.Random(seed)
        self._vocabulary = cast(nn.Embedding, model.get_input_embeddings()).num_embeddings
        # A step takes from them in its own thread; whoever has begun goes first.
        self._resumed: deque[Sample] = deque()
        self._waiting: deque[Sample] = deque()
        self._running: list[Sample] = []
        self._cache = RowCache()
        self.adapters = adapters or Adapters(model, {})

    @property
    def idle(self) -> bool:
        return not self._resumed and not self._waiting and not self._running

    def submit(self, prompt: Sequence[int], sampling: Sampling, adapter: str | None = None, drawn: int = 0) -> Job:
        """Queue a request. One that cannot be served is refused here, before it touches the batch.

        `drawn` of the prompt's last tokens are the reply's first: an aborted request that is continued, for which those
        that never ran wait.
        """
        self._check(prompt, sampling)
        self.adapters.require(adapter)
        seed = self._seeds.getrandbits(64) if sampling.seed is None else sampling.seed
        prompt = tuple(prompt)
        job = Job([Sample(prompt, sampling, random.Random(f"{seed}/{i}"), adapter, drawn) for i in range(sampling.n)])
        (self._resumed if drawn else self._waiting).extend(job.samples)
        return job

    @torch.inference_mode()
    def step(self) -> list[Sample]:
        """Admit waiting requests, then sample one token per row. Returns the samples that finished."""
        self._admit()
        if not self._running:
            return []
        tokens, log_probs = choose(self._next_logits(), self._running)
        finished = []
        for row in reversed(range(len(self._running))):
            sample = self._running[row]
            sample.tokens.append(tokens[row])
            sample.log_probs.append(log_probs[row])
            sample.finish_reason = self._finish_reason(sample)
            if sample.finish_reason:
                finished.append(sample)
                self._leave(row)
        return finished

    @torch.inference_mode()
    def abort(self, samples: Collection[Sample] | None = None) -> list[Sample]:
        """End the given samples, or all, at once. Returns those that had not finished."""
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
        """Free the cache's memory; only while idle."""
        if not self.idle:
            count = len(self._running) + len(self._resumed) + len(self._waiting)
            raise EngineLost(f"{count} requests still need the cache")
        self._cache.clear()

    def _check(self, prompt: Sequence[int], sampling: Sampling) -> None:
        if not prompt:
            raise RequestError("an empty prompt", rule="a prompt has a token", fix="send at least one token")
        if len(prompt) + sampling.max_tokens > self.max_length:
            raise RequestError(
                f"a prompt of {len(prompt)} tokens with max_tokens={sampling.max_tokens}",
                rule=f"prompt and reply must fit the {self.max_length} tokens of the engine",
                fix="shorten the prompt, ask for fewer tokens, or raise rollout.max_model_len",
            )
        if not 0 <= min(prompt) <= max(prompt) < self._vocabulary:
            raise RequestError(
                f"token ids from {min(prompt)} to {max(prompt)}",
                rule=f"the model knows ids from 0 to {self._vocabulary - 1}",
                fix="use the model's own tokenizer",
            )
        if sampling.stop and self.decode is None:
            raise RequestError("stop strings", rule="they need a tokenizer", fix="use stop_token_ids")

    def _admit(self) -> None:
        joining = self._admissible()
        if not joining:
            return
        # Equal prompts of one adapter side by side are prefilled once; similar lengths need little padding.
        joining.sort(key=lambda sample: (len(sample.prompt), sample.prompt, sample.adapter or ""))
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
        """The next waiting samples that fit, in their order; one alone always does."""
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
        """Prefill all but the last token of each prompt, right-padded: a causal model does not see padding."""
        # An adapter has keys and values of its own.
        prefixes = [(sample.adapter, sample.prompt[:-1]) for sample in joining]
        unique = list(dict.fromkeys(prefixes))
        length = max(len(prompt) for _, prompt in unique)
        if length:
            ids = torch.tensor([[*prompt, *[0] * (length - len(prompt))] for _, prompt in unique])
            self.adapters.aim([adapter for adapter, _ in unique])
            prefilled = DynamicCache()
            self.model.base_model(input_ids=ids.to(self.model.device), past_key_values=prefilled, use_cache=True)
            number = {prefix: row for row, prefix in enumerate(unique)}
            self._cache.append(prefilled, [number[prefix] for prefix in prefixes])
        else:
            self._cache.append_empty(len(joining))
        self._running.extend(joining)

    def _next_logits(self) -> torch.Tensor:
        device = self.model.device
        positions = torch.tensor([sample.cached for sample in self._running], device=device)
        columns = max(sample.cached for sample in self._running) + 1
        self._cache.aim(positions, columns)
        seen = torch.arange(columns, device=device) <= positions[:, None]
        mask = torch.zeros(seen.shape, dtype=self.model.dtype, device=device).masked_fill_(
            ~seen, torch.finfo(self.model.dtype).min
        )
        last = torch.tensor([[sample.last_token] for sample in self._running], device=device)
        self.adapters.aim([sample.adapter for sample in self._running])
        output = self.model(
            input_ids=last,
            position_ids=positions[:, None],
            attention_mask=mask[:, None, None, :],
            past_key_values=self._cache,
            use_cache=True,
        )
        logits: torch.Tensor = output.logits[:, -1]
        return logits

    def _finish_reason(self, sample: Sample) -> FinishReason | None:
        sampling, token = sample.sampling, sample.tokens[-1]
        if token in sampling.stop_token_ids or (token in self._eos and not sampling.ignore_eos):
            return "stop"
        if sampling.stop and self._ends_with_stop(sample):
            return "stop"
        if len(sample.tokens) >= sampling.max_tokens:
            return "length"
        return None

    def _ends_with_stop(self, sample: Sample) -> bool:
        # A token holds at least one byte, so a stop string that the newest token completes lies in the last
        # as many tokens as it has bytes; a few more, because some tokenizers strip leading spaces.
        assert self.decode is not None
        window = max(len(stop.encode()) for stop in sample.sampling.stop) + 4
        tail = self.decode(sample.last_of_reply(window))
        return any(stop in tail for stop in sample.sampling.stop)

    def _leave(self, row: int) -> None:
        self._cache.remove(row)
        last = self._running.pop()
        if row < len(self._running):
            self._running[row] = last


def _checked_length(model: PreTrainedModel, max_length: int) -> int:
    config = model.config.get_text_config()
    limit = getattr(config, "max_position_embeddings", None) or max_length
    if max_length > limit:
        raise ConfigError(
            f"max_model_len={max_length}",
            rule=f"the model has {limit} positions",
            fix=f"set actor_rollout_ref.rollout.max_model_len to {limit} or less",
        )
    kinds = set(getattr(config, "layer_types", None) or ["full_attention"])
    window = getattr(config, "sliding_window", None) or max_length
    if kinds - {"full_attention", "sliding_attention"} or window < max_length:
        raise ConfigError(
            f"{config.model_type} with layers {', '.join(sorted(kinds))} and sliding window {window}",
            rule=f"rollout.name=transformers serves models whose layers see the whole {max_length} tokens",
            fix="use rollout.name=vllm or sglang, or a rollout.max_model_len within the window",
        )
    return max_length


def _bytes_per_token(model: PreTrainedModel) -> int:
    config = model.config.get_text_config()
    heads = getattr(config, "num_key_value_heads", None) or config.num_attention_heads
    size = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    cells: int = 2 * config.num_hidden_layers * heads * size
    return cells * model.dtype.itemsize
