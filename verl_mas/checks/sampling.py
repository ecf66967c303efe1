"""Sampling settings: their names, by the engine or endpoint that gets them, and their ranges."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from omegaconf import DictConfig

from verl_mas.checks.refusals import Problem
from verl_mas.config.run import Run
from verl_mas.config.schema import AgentSpec, Sampling
from verl_mas.config.values import settable
from verl_mas.engines.sampling import SET_BY_US, SET_FOR_EVERY_REQUEST, mistyped, sampling_errors, stop_errors
from verl_mas.errors import ConfigWarning
from verl_mas.workflow.members import flat

# Lengths of an agent's own -> those of the run, to which they are cut.
CUT_TO = {"max_tokens": "data.max_response_length", "max_prompt_length": "data.max_prompt_length"}


def check_sampling(run: Run) -> Iterator[Problem]:
    """The sampling settings of the agents."""
    for name, spec in run.mas.agents.items():
        policy = run.mas.policies.get(spec.policy)
        if policy is None:
            continue  # Refused where agents are assigned to policies.
        rollout = None if policy.remote else run.view(spec.policy).section("rollout")
        for path, given in _settings(spec, f"mas.agents.{name}"):
            if rollout is None:
                yield from _endpoint(given, path)
            else:
                yield from sampling_errors(given, str(rollout.name), path)
                yield from stop_errors(given, rollout, path)
        if rollout is not None:
            yield from _cut(run.config, spec, f"mas.agents.{name}")


def _settings(spec: AgentSpec, agent: str) -> Iterator[tuple[str, dict[str, object]]]:
    """The places of an agent's sampling settings, and what is there."""
    for section in ("sampling", "validation_sampling"):
        own = dict(getattr(spec, section))
        extra = own.pop("extra", {})
        yield f"{agent}.{section}", own
        yield f"{agent}.{section}.extra", extra


def _endpoint(given: Mapping[str, object], path: str) -> Iterator[Problem]:
    """An endpoint may have settings that no other has, so an unknown name is at most a warning."""
    shared = settable(Sampling).keys() | SET_FOR_EVERY_REQUEST | SET_BY_US.keys()
    yield from sampling_errors({key: given[key] for key in given if key in shared}, None, path)
    for key in given.keys() - shared:
        if meant := mistyped(key):
            yield ConfigWarning(
                f"{path}.{key}={given[key]!r}",
                reason="it is sent as it is; an endpoint refuses or ignores a misspelled setting",
                fix=f"did you mean {meant!r}?",
            )


def _cut(config: DictConfig, spec: AgentSpec, path: str) -> Iterator[ConfigWarning]:
    for key, longest in CUT_TO.items():
        own = flat(spec.sampling).get(key) if key == "max_tokens" else spec.max_prompt_length
        limit = config.data.get(longest.removeprefix("data."))
        if isinstance(own, int) and type(limit) is int and own > limit:
            yield ConfigWarning(
                f"{path}{'.sampling' if key == 'max_tokens' else ''}.{key}={own}",
                reason=f"{longest}={limit} is the limit of every row, so this has no effect",
                fix=f"raise {longest}, or lower {key}",
            )
