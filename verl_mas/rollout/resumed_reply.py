"""Resumes replies. When weights change, an engine aborts its replies. After each abort, the rest of the reply is
requested from the engine. At the end, the parts of the reply are joined.

verl's client for such engines, `FullyAsyncLLMServerClient`, sleeps a second before each try, does not record which
weights sampled which tokens, misses stop strings that begin before an abort and end after it, and, if a request has a
seed, repeats its random numbers.
"""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import groupby

import numpy as np
from omegaconf import DictConfig
from verl.experimental.agent_loop.tool_agent_loop import SPEC_DECODE_EXTRA_KEYS
from verl.workers.rollout.replica import TokenOutput

from verl_mas.engines.facts import facts_of
from verl_mas.engines.sampling import stop_window
from verl_mas.verl_.row import ABORTS, GLOBAL_STEPS, MAX_GLOBAL_STEPS, MIN_GLOBAL_STEPS, VERSIONS
from verl_mas.verl_.types import Fields

Decode = Callable[[Sequence[int]], str]
# Pairs [number of tokens, version of the weights that sampled them]. A pair is a list and not a tuple, because the
# records of sessions store it as a list.
Versions = list[list[int | None]]

# Stop reasons of aborted replies: vLLM and the embedded engine report the first, SGLang reports the second.
ABORTED = ("aborted", "abort")
LIMITS = ("max_tokens", "max_new_tokens")
LEAST = ("min_tokens", "min_new_tokens")
# Settings that keep their meaning when the first part of a reply is moved to the end of the prompt. With any other
# setting, such as a grammar, an aborted reply restarts.
RESUMABLE = frozenset(
    "temperature top_p top_k min_p repetition_penalty ignore_eos logprobs stop stop_token_ids seed sampling_seed "
    "logit_bias allowed_token_ids detokenize include_stop_str_in_output no_stop_trim skip_special_tokens "
    "spaces_between_special_tokens".split()
).union(LIMITS, LEAST)


@dataclass
class ResumedReply:
    """A reply in parts. `request` returns the request for the rest, and `add` takes a new part."""

    prompt: Sequence[int]
    params: Fields
    rollout: DictConfig
    decode: Decode
    tokens: list[int] = field(default_factory=list)
    parts: list[TokenOutput] = field(default_factory=list)
    aborts: int = 0
    whole: bool = False

    def request(self) -> Fields:
        drawn = len(self.tokens)
        if not drawn:
            return {"prompt_ids": self.prompt, "sampling_params": dict(self.params)}
        left = {name: max(0, self.params[name] - drawn) for name in LEAST if self.params.get(name)}
        params = {name: value for name, value in self.params.items() if name not in LIMITS}
        params |= {LIMITS[0]: self._limit - drawn, **left}
        request = {"prompt_ids": [*self.prompt, *self.tokens], "sampling_params": params}
        if facts_of(self.rollout.name).resumes:
            return {**request, "drawn": drawn}
        if params.get("seed") is not None:
            # The engine would repeat the random numbers of the first tokens if the seed were the same.
            params["seed"] += drawn
        return request

    def add(self, part: TokenOutput, *, refused: bool) -> None:
        aborted = part.stop_reason in ABORTED
        self.aborts += aborted
        if aborted and not refused and not self._resumable:
            return
        if (end := self._stop_across_the_cut(part.token_ids)) is not None:
            keep(part, end, len(self.prompt) + len(self.tokens))
            part.stop_reason = "stop"
        self.tokens += part.token_ids
        if part.stop_reason in ABORTED and len(self.tokens) >= self._limit:
            part.stop_reason = "length"  # the abort came after the last allowed token
        self.whole = refused or part.stop_reason not in ABORTED
        if part.token_ids or self.whole:
            self.parts.append(part)

    def joined(self) -> TokenOutput:
        last, written = self.parts[-1], [part for part in self.parts if part.token_ids]
        counted = [part.num_preempted for part in self.parts if part.num_preempted is not None]
        return last.model_copy(
            update={
                "token_ids": self.tokens,
                "log_probs": _log_probs(written) if written else last.log_probs,
                "routed_experts": _routed_experts(self.parts),
                "num_preempted": sum(counted) if counted else None,
                "extra_fields": self._extra_fields(),
            }
        )

    def _extra_fields(self) -> Fields:
        first, last = self.parts[0].extra_fields, self.parts[-1].extra_fields
        versions = merged_versions(step for part in self.parts for step in _versions(part))
        fields = {**last, VERSIONS: versions, ABORTS: self.aborts}
        if versions:
            fields |= {MIN_GLOBAL_STEPS: versions[0][1], MAX_GLOBAL_STEPS: versions[-1][1]}
        if "num_cached_tokens" in first:
            fields["num_cached_tokens"] = first["num_cached_tokens"]
        for key in SPEC_DECODE_EXTRA_KEYS:
            if key in last:
                fields[key] = sum(part.extra_fields.get(key, 0) for part in self.parts)
        return fields

    @property
    def _resumable(self) -> bool:
        return RESUMABLE.issuperset(name for name, value in self.params.items() if value)

    @property
    def _limit(self) -> int:
        return reply_limit(self.rollout, self.params, len(self.prompt))

    def _stop_across_the_cut(self, tokens: Sequence[int]) -> int | None:
        """Count the new tokens up to the end of a stop string that began in an earlier part. The engine misses such a
        string, because the earlier part is in its prompt."""
        given = self.params.get("stop") or ()
        stops = (given,) if isinstance(given, str) else tuple(given)
        if not stops or not self.tokens:
            return None
        window = stop_window(stops)
        for end in range(1, min(len(tokens), window) + 1):
            text = self.decode([*self.tokens[-window:], *tokens[:end]][-window:])
            if any(stop in text for stop in stops):
                return end
        return None


def reply_limit(rollout: DictConfig, params: Fields, prompt: int) -> int:
    """Return the maximum number of tokens in a reply to a prompt of this length. verl's servers have the same limit."""
    row = min(rollout.response_length, rollout.prompt_length + rollout.response_length - prompt)
    wanted = next((params[name] for name in LIMITS if params.get(name) is not None), row)
    return max(1, int(min(wanted, (rollout.max_model_len or math.inf) - prompt)))


def merged_versions(versions: Iterable[Sequence[int | None]]) -> Versions:
    """Merge adjacent pairs with the same version."""
    grouped = groupby(versions, key=lambda step: step[1])
    return [[sum(tokens or 0 for tokens, _ in steps), version] for version, steps in grouped]


def _versions(part: TokenOutput) -> Versions:
    """List the versions of a part. If the engine does not report them, the whole part has one version, because such an
    engine changes weights only while no request runs."""
    if not part.token_ids:
        return []
    listed: Versions | None = part.extra_fields.get(VERSIONS)
    return listed or [[len(part.token_ids), part.extra_fields.get(GLOBAL_STEPS)]]


def keep(part: TokenOutput, end: int, before: int) -> None:
    """Cut a part to its first `end` tokens. `before`: number of tokens in the prompt and the earlier parts."""
    versions: Versions = []
    left = end
    for tokens, version in _versions(part):
        versions.append([min(tokens or 0, left), version])
        left -= versions[-1][0] or 0
    part.extra_fields[VERSIONS] = [step for step in versions if step[0]]
    part.token_ids = part.token_ids[:end]
    part.log_probs = part.log_probs and part.log_probs[:end]
    if part.routed_experts is not None:
        part.routed_experts = part.routed_experts[: before + end]


def _log_probs(parts: Sequence[TokenOutput]) -> list[float] | None:
    if any(part.log_probs is None for part in parts):
        return None
    return [log_prob for part in parts for log_prob in part.log_probs or ()]


def _routed_experts(parts: Sequence[TokenOutput]) -> object:
    """Join the routed experts. The first part has the experts for the prompt and its own tokens. From later parts, only
    the experts for their own tokens are used, because the weights that sampled these tokens chose these experts."""
    routed = None
    for part in parts:
        if part.routed_experts is None or not part.token_ids:
            continue
        new = part.routed_experts
        routed = new if routed is None else np.concatenate([routed, new[-len(part.token_ids) :]])
    return routed
