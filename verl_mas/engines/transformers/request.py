"""Options of the embedded engine, sampling settings of a request, and its samples while they run."""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Annotated, Literal

from verl_mas.config.values import Count, Range, load_dataclass
from verl_mas.verl_.types import Fields

if TYPE_CHECKING:
    from verl_mas.engines.transformers.images import Sight

PATH = "actor_rollout_ref.rollout.engine_kwargs.transformers"


@dataclass(frozen=True)
class Options:
    """Options of the embedded engine."""

    threads: Count = 1
    """Torch threads of the server. Servers and trainers share the cores, so 1 suits a small machine."""

    cache_gib: Annotated[float, Range(0.001, 4096)] = 2.0
    """Memory for keys and values; decides how many sequences run at once."""

    @classmethod
    def of(cls, engine_kwargs: Mapping[str, Mapping[str, object]] | None) -> Options:
        return load_dataclass(cls, (engine_kwargs or {}).get("transformers"), PATH)


FinishReason = Literal["stop", "length", "aborted", "failed"]

GREEDY_BELOW = 1e-5  # temperatures under this mean greedy, as in vLLM


@dataclass(frozen=True)
class RequestSampling:
    """One request's sampling settings, with vLLM's names. `engines.sampling` has checked their ranges."""

    max_tokens: int
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = -1
    repetition_penalty: float = 1.0
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False
    seed: int | str | None = None

    @classmethod
    def names(cls) -> frozenset[str]:
        return frozenset(field.name for field in fields(cls))

    @classmethod
    def parse(cls, params: Fields) -> RequestSampling:
        """Read the settings from a dict with vLLM's names."""
        given = {name: value for name, value in params.items() if value is not None}
        stop = given.pop("stop", ())
        return cls(
            stop=(stop,) if isinstance(stop, str) else tuple(stop),
            stop_token_ids=tuple(given.pop("stop_token_ids", ())),
            **given,
        )

    @property
    def greedy(self) -> bool:
        return self.temperature < GREEDY_BELOW


@dataclass(eq=False)
class Sample:
    """One sample of a request; while it runs it is one row of the batch."""

    prompt: tuple[int, ...]
    sampling: RequestSampling
    generator: random.Random
    adapter: str | None = None
    drawn: int = 0  # how many tokens at the end of the prompt are the first tokens of an aborted reply
    sight: Sight | None = None
    tokens: list[int] = field(default_factory=list)
    log_probs: list[float] = field(default_factory=list)
    finish_reason: FinishReason | None = None
    # Pairs of a number of tokens and the version of the weights that sampled them, in order.
    versions: list[tuple[int, int | None]] = field(default_factory=list)

    def __post_init__(self) -> None:
        for _ in range(self.drawn):
            self.generator.random()

    @property
    def names(self) -> tuple[int, ...]:
        """Key for comparing prompts: the tokens, with a hash of the image in place of each token of an image."""
        return self.sight.names if self.sight else self.prompt

    @property
    def position(self) -> int:
        """Position of the last token."""
        return self.cached + (self.sight.shift if self.sight else 0)

    @property
    def last_token(self) -> int:
        return self.tokens[-1] if self.tokens else self.prompt[-1]

    def last_of_reply(self, count: int) -> list[int]:
        before = min(count - len(self.tokens), self.drawn)
        return [*self.prompt[len(self.prompt) - before :], *self.tokens] if before > 0 else self.tokens[-count:]

    @property
    def cached(self) -> int:
        """Number of tokens whose keys and values are in the cache: all but the last."""
        return len(self.prompt) + len(self.tokens) - 1

    @property
    def max_length(self) -> int:
        """The cache length that this sample may need."""
        return len(self.prompt) + self.sampling.max_tokens
