"""Sampling settings of acts that no engine knows."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from verl_mas.engines.sampling import sampling_errors
from verl_mas.workflow.client import Request


def unknown_sampling(requests: Iterable[Request]) -> Iterator[str]:
    """Each agent and setting once."""
    settings = {(request.agent, name): value for request in requests for name, value in request.sampling.items()}
    for (agent, name), value in sorted(settings.items(), key=lambda item: item[0]):
        for error in sampling_errors({name: value}, None, f"{agent}.act"):
            yield f"{error.value}: {error.rule}; {error.fix}"
