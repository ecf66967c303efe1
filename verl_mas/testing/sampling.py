"""Sampling settings of acts that no engine knows."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Iterator

from verl_mas.config.schema import Sampling
from verl_mas.config.values import settable
from verl_mas.workflow.client import Request

# Of vLLM, SGLang and OpenAI, beside the common ones.
OF_ENGINES = frozenset(
    "allowed_token_ids bad_words ebnf guided_choice guided_grammar guided_json guided_regex include_stop_str_in_output "
    "json_schema logit_bias max_completion_tokens max_new_tokens min_new_tokens min_tokens no_stop_trim "
    "reasoning_effort regex response_format sampling_seed skip_special_tokens spaces_between_special_tokens stop_regex "
    "structural_tag structured_outputs thinking_token_budget top_logprobs verbosity".split()
)
KNOWN = OF_ENGINES.union(settable(Sampling)) - {"extra"}


def unknown_sampling(requests: Iterable[Request]) -> Iterator[str]:
    for agent, name in sorted({(request.agent, name) for request in requests for name in request.sampling}):
        if name not in KNOWN:
            close = difflib.get_close_matches(name, KNOWN, n=1)
            hint = f"; did you mean {close[0]}?" if close else ""
            yield f"{agent} acts with {name}=..., which no engine takes as a sampling setting{hint}"
