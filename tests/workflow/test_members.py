"""The members of a team and their settings."""

from __future__ import annotations

import re

import pytest

from verl_mas.config import load
from verl_mas.config.schema import AgentSpec, PolicySpec, RemoteSpec
from verl_mas.errors import ConfigError
from verl_mas.workflow import Task
from verl_mas.workflow.members import members_of


def member(agent, **policy):
    mas = load({"agents": {"a": agent}, "policies": {"main": policy}})
    return members_of(("a",), mas.agents, mas.policies)["a"]


@pytest.mark.parametrize(
    ("agents", "says"),
    [
        ("solver", r"agents = \('solver',\)"),
        ((), "at least one agent"),
        *((agents, "a tuple of names") for agents in (None, 5, (1, 2), {"a", "b"})),
        (("a", "b", "a"), "'a' is there twice"),
        *(((name,), "names are part of metric names") for name in ("../../x", "a b", "rows", "", "a\n")),
    ],
)
def test_agents_that_are_not_distinct_or_cannot_be_written_into_metrics_are_refused(agents, says):
    with pytest.raises(ConfigError, match=says):
        members_of(agents, {}, {})


@pytest.mark.parametrize(
    ("sampling", "says"),
    [
        ({"max_new_tokens": 8}, "did you mean 'max_tokens'"),
        ({"n": 4}, "takes the settings of Sampling only"),
        ({"top_p": 0}, "a finite number, above 0, at most 1"),
        ({"top_k": 0}, "-1, or a whole number, at least 1"),
        ({"stop": 1}, "text, or a list, each item text"),
        ({"stop_token_ids": [-1]}, "a whole number, at least 0"),
        ({"min_p": 2}, "between 0 and 1"),
        ({"repetition_penalty": 0}, "above 0"),
        *(({f"{name}_penalty": 3}, "between -2 and 2") for name in ("presence", "frequency")),
        ({"ignore_eos": "no"}, "true or false"),
        ({"seed": 0.5}, "a whole number"),
        ({"extra": ["min_tokens"]}, "a mapping"),
    ],
)
@pytest.mark.parametrize("section", ["sampling", "validation_sampling"])
def test_sampling_that_no_engine_takes_is_refused(section, sampling, says):
    with pytest.raises(ConfigError, match=re.escape(says)):
        load({"agents": {"a": {section: sampling}}})
    with pytest.raises(ConfigError, match=re.escape(says)):
        AgentSpec(**{section: sampling})


def test_extra_sampling_settings_are_passed_on_unchanged():
    agent = {"sampling": {"temperature": 1, "extra": {"min_tokens": 2}}, "validation_sampling": {"extra": {"best": 1}}}
    trained, validated = Task([]), Task([], validate=True)
    assert member(agent).sampling(trained, {"top_p": 0.5}) == {"temperature": 1.0, "min_tokens": 2, "top_p": 0.5}
    assert member(agent).sampling(validated, {}) == {"min_tokens": 2, "best": 1}


@pytest.mark.parametrize("sampling", [{"repetition_penalty": 1.1}, {"extra": {"repetition_penalty": 1.1}}])
def test_a_penalty_is_refused_only_for_an_agent_that_trains(sampling):
    with pytest.raises(ConfigError, match="log-probs without penalties"):
        member({"sampling": sampling})
    assert member({"sampling": sampling}, trainable=False).sampling(Task([]), {}) == {"repetition_penalty": 1.1}
    member({"validation_sampling": sampling})


def test_a_mistyped_agent_is_refused():
    with pytest.raises(ConfigError, match="did you mean 'solver'"):
        members_of(("solver", "verifier"), {"slover": AgentSpec()}, {})


def test_agents_of_frozen_and_remote_policies_do_not_train():
    policies = {
        "main": PolicySpec(),
        "cold": PolicySpec(trainable=False),
        "far": PolicySpec(remote=RemoteSpec("http://x", "m")),
    }
    specs = {"a": AgentSpec("main"), "b": AgentSpec("cold"), "c": AgentSpec("far"), "d": AgentSpec(trainable=False)}
    members = members_of(tuple("abcd"), specs, policies)
    assert [members[name].trainable for name in "abcd"] == [True, False, False, False]
