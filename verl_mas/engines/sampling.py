"""Checks that an engine or endpoint accepts sampling settings. They run on the configuration and on every act."""

import ast
from collections.abc import Iterator, Mapping, Sequence
from functools import cache

from omegaconf import DictConfig

from verl_mas.config.registry import closest, nearest
from verl_mas.config.sampling import Sampling
from verl_mas.config.values import load_dataclass, settable
from verl_mas.engines.facts import ENGINES, defined, facts_of
from verl_mas.errors import ConfigError

# Sampling settings that verl-mas sets itself, each with the setting that decides its value. `n` is reserved, because
# candidates are branches of a session; `logprobs` is reserved, because the trainer needs log-probs.
SET_BY_US = {"n": "mas.branch.k", "logprobs": "actor_rollout_ref.rollout.calculate_log_probs"}
# Settings that an OpenAI-compatible endpoint may take besides the common ones: OpenAI's own, vLLM's and SGLang's.
ENDPOINT_NAMES = frozenset(
    "best_of bad_words chat_template_kwargs ebnf extra_body frequency_penalty guided_choice guided_grammar guided_json "
    "guided_regex ignore_eos include_stop_str_in_output json_schema length_penalty logit_bias max_completion_tokens "
    "max_new_tokens max_tokens metadata min_p min_tokens mm_processor_kwargs parallel_tool_calls presence_penalty "
    "priority prompt_cache_key reasoning reasoning_effort regex repetition_penalty response_format safety_identifier "
    "seed separate_reasoning service_tier skip_special_tokens spaces_between_special_tokens stop stop_regex "
    "stop_token_ids store structured_outputs temperature thinking thinking_token_budget tool_choice top_a top_k "
    "top_logprobs top_p truncate_prompt_tokens use_beam_search user verbosity".split()
)
NEED_TOKENIZER = ("stop", "stop_regex", "min_new_tokens")
THINKING = "thinking_token_budget"
# Settings that are refused, because every request already has its own value.
SET_FOR_EVERY_REQUEST = frozenset(
    "detokenize flat_logprobs messages model output_kind prompt_logprobs stream stream_options tools".split()
)


def names_of(engine: str | None) -> frozenset[str] | None:
    """Return the names of the sampling settings that an engine accepts; None if they are unknown. If `engine` is None,
    return the names of all engines and endpoints."""
    if engine is not None:
        known = facts_of(engine).sampling
        return known() if known else None
    parts = (names_of(name) for name in ENGINES)
    return ENDPOINT_NAMES.union(settable(Sampling), *(part for part in parts if part)) - {"extra"}


def sampling_errors(given: Mapping[str, object], engine: str | None, path: str) -> Iterator[ConfigError]:
    """Find errors in flat settings. `engine` is None if it is not known yet. Errors name the settings by `path`."""
    known = names_of(engine)
    for name in given:
        if name in SET_BY_US:
            rule = f"verl-mas sets {name}, from {SET_BY_US[name]}"
            yield ConfigError(f"{path}.{name}={given[name]!r}", rule=rule, fix=f"remove it, and set {SET_BY_US[name]}")
        elif name in SET_FOR_EVERY_REQUEST:
            value = f"{path}.{name}={given[name]!r}"
            yield ConfigError(value, rule="every request already has its own value", fix=f"remove {name}")
        elif known is not None and name not in known:
            rule = f"it is a sampling setting of {f'rollout.name={engine}' if engine else 'an engine'}"
            fix = nearest(name, sorted(known - SET_FOR_EVERY_REQUEST - set(SET_BY_US)))
            yield ConfigError(f"{path}.{name}={given[name]!r}", rule=rule, fix=fix)
    try:
        converted(given, path)
    except ConfigError as error:
        yield error


def converted(given: Mapping[str, object], path: str) -> dict[str, object]:
    """Convert flat settings for engines: an integer temperature becomes a float. Raises ConfigError for a value out of
    range, which some engines would turn into an infinity before they crash."""
    return {**given, **load_dataclass(Sampling, {key: given[key] for key in given if key in settable(Sampling)}, path)}


def engine_errors(given: Mapping[str, object], rollout: DictConfig, path: str) -> Iterator[ConfigError]:
    """Find flat settings that a policy's engine refuses because of its configuration. Errors name the settings by
    `path`."""
    facts, budget = facts_of(str(rollout.name)), given.get(THINKING)
    options = rollout.engine_kwargs.get(rollout.name) or {} if budget is not None else {}
    if budget is not None and facts.thinking_fix and (fix := facts.thinking_fix(options)):
        value = f"{path}.{THINKING}={budget} with rollout.name={rollout.name}"
        yield ConfigError(value, rule="the engine, as it is set up, refuses every request with it", fix=fix)
    for name in NEED_TOKENIZER if facts.needs_tokenizer and rollout.get("skip_tokenizer_init") else ():
        if given.get(name):
            yield ConfigError(
                f"{path}.{name}={given[name]!r} with rollout.name={rollout.name} and rollout.skip_tokenizer_init=True",
                rule="the engine needs a tokenizer for it: without one it refuses such a request, or dies of it",
                fix="set actor_rollout_ref.rollout.skip_tokenizer_init=False, or leave it out",
            )


def mistyped(name: str) -> str:
    """Return the setting of an endpoint that a mistyped name probably means. The result is empty if an endpoint may
    have a setting with this name."""
    known = ENDPOINT_NAMES | SET_FOR_EVERY_REQUEST
    return "" if name in known else closest(name, known, cutoff=0.8)


@cache
def installed_names(module: str, release: frozenset[str]) -> frozenset[str]:
    """Return the fields of SamplingParams in the source of the installed engine. If the engine is not installed, return
    `release`, the fields of the version that verl requires."""
    body = getattr(defined(f"{module}:SamplingParams"), "body", None)
    if body is None:
        return release
    fields = {ast.unparse(node.target) for node in body if isinstance(node, ast.AnnAssign)}
    made = (node.args for node in body if isinstance(node, ast.FunctionDef) and node.name == "__init__")
    fields |= {argument.arg for given in made for argument in (*given.args, *given.kwonlyargs)} - {"self"}
    # Each engine has its own name for the maximal length, and verl converts `max_tokens` to it.
    return frozenset(name for name in {"max_tokens", *fields} - {"max_new_tokens"} if not name.startswith("_"))


def stop_window(stops: Sequence[str]) -> int:
    """Return how many of the last tokens may contain a stop string that ends with the newest token.

    A token has at least one byte. A few tokens are added, because some tokenizers strip leading spaces.
    """
    return max(len(stop.encode()) for stop in stops) + 4
