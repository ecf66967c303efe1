"""Sampling settings of an agent or a request: types, meanings and ranges."""

from typing import Annotated, Literal, TypeAlias, TypedDict

from verl_mas.config.values import Above, Count, Length, Penalty, Range, Share, Temperature

# Largest integers that engines accept. Some engines crash if they get a larger integer.
INT32, INT64 = 2**31 - 1, 2**63 - 1
StopText: TypeAlias = Annotated[str, Length(1, 1000)]


class Sampling(TypedDict, total=False):
    """Sampling settings of an agent, where they differ from those of the rollout."""

    temperature: Temperature
    """0: greedy. The trainer computes log-probs at the temperature of each row."""

    top_p: Annotated[float, Above(0), Range(high=1)]
    """Sample from the most probable tokens whose probabilities add up to this share."""

    top_k: Literal[-1] | Annotated[int, Range(1, INT32)]
    """Sample from this number of most probable tokens; -1: from all tokens."""

    min_p: Share
    """Exclude tokens whose probability is below this share of the highest probability."""

    max_tokens: Count
    """Maximum length of a reply in tokens."""

    stop: StopText | Annotated[list[StopText], Length(0, 64)]
    """Strings that end a reply."""

    stop_token_ids: Annotated[list[Annotated[int, Range(0, INT32)]], Length(0, 1024)]
    """Tokens that end a reply."""

    ignore_eos: bool
    """Whether a reply continues after the end-of-sequence token."""

    seed: Annotated[int, Range(-INT64, INT64)]
    """Seed of the request. With a seed, all replies to one prompt are the same."""

    repetition_penalty: Penalty
    """1: no penalty. The setting is refused for an agent that trains, because the trainer's log-probs do not include
    the penalty."""

    presence_penalty: Annotated[float, Range(-2, 2)]
    """0: no penalty. The setting is refused for an agent that trains."""

    frequency_penalty: Annotated[float, Range(-2, 2)]
    """0: no penalty. The setting is refused for an agent that trains."""

    extra: dict[str, object]
    """Settings of one engine or endpoint, which are passed on unchanged, such as `{min_tokens: 4}` for vLLM."""
