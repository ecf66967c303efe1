"""Agents that exchange their policies."""

from __future__ import annotations

import asyncio
import re
from dataclasses import replace

import pytest

from verl_mas.config import load
from verl_mas.config.run import Run
from verl_mas.config.schema import SwapSpec
from verl_mas.errors import ConfigError
from verl_mas.testing.scripted_llm import ScriptedLLM
from verl_mas.trainer.checkpoint import run_identity
from verl_mas.workflow import Outcome, Task, Workflow
from verl_mas.workflow.members import members_of
from verl_mas.workflow.run import run_session
from verl_mas.workflow.session import SessionConfig

NAMES = ("first", "second", "third")


def members(every=2, agents=NAMES[:2], **policies):
    mas = load(
        {
            "policies": {"a": {}, "b": {}, "c": {}} | policies,
            "agents": {name: {"policy": policy} for name, policy in zip(NAMES, "abc", strict=True)},
            "swap": {"agents": list(agents), "every": every},
        }
    )
    return members_of(NAMES, mas.agents, mas.policies, mas.swap)


def at(steps, members, **task):
    """The policies of the three agents, by step."""
    return ["".join(members[name].policy(Task([], step=step, **task)) for name in NAMES) for step in steps]


def test_agents_exchange_their_policies_after_so_many_training_steps_and_others_keep_theirs():
    two, three = members(every=2), members(every=1, agents=NAMES)
    assert at(range(8), two) == ["abc", "abc", "abc", "bac", "bac", "abc", "abc", "bac"], "0 is outside of training"
    assert at(range(1, 5), three) == ["abc", "bca", "cab", "abc"]
    assert all(sorted(policies) == ["a", "b", "c"] for policies in at(range(1, 40), members(every=3, agents=NAMES)))
    assert {*at(range(6), three, validate=True)} == {"abc"}, "validation is with the configured policies"


class Both(Workflow):
    agents = NAMES

    async def run(self, task, team):
        await team.first.act("x")
        return Outcome(answer=await team.second.act("y"), reward=1.0)


@pytest.mark.parametrize(("step", "played"), [(2, ["a", "b"]), (3, ["b", "a"])])
def test_an_act_is_served_by_the_policy_of_its_step_and_recorded_with_it(step, played):
    clients = {name: ScriptedLLM(f"by {name}") for name in "abc"}
    config = SessionConfig(members(every=2), clients)
    result = asyncio.run(run_session(Both, replace(Task.of("q"), step=step), config))
    assert [(reply.policy, reply.text) for reply in result.session.replies] == [(name, f"by {name}") for name in played]


@pytest.mark.parametrize(
    ("agents", "policies", "says"),
    [
        (("first", "secnd"), {}, "did you mean 'second'"),
        (("first",), {}, "two different agents, or more"),
        (("first", "first"), {}, "two different agents, or more"),
        (("first", "second"), {"b": {"trainable": False}}, "the policy b is frozen"),
        (("first", "second"), {"a": {"remote": {"base_url": "http://x", "model": "m"}}}, "the policy a is remote"),
        (("first", "second"), {"b": {"overrides": {"model": {"path": "x"}}}}, "differ in model"),
        (("first", "second"), {"b": {"overrides": {"rollout": {"n": 2}}}}, "differ in rollout"),
    ],
)
def test_an_exchange_that_cannot_be_is_refused(agents, policies, says):
    with pytest.raises(ConfigError, match=re.escape(says)):
        members(agents=agents, **policies)


def test_agents_of_one_policy_have_nothing_to_exchange_and_unknown_policies_are_left_to_the_check_of_all_agents():
    mas = load({"swap": {"agents": ["first", "second"]}})
    with pytest.raises(ConfigError, match=r"nothing to exchange(.|\n)*\+\+mas.agents.second.policy=llm1"):
        members_of(NAMES, mas.agents, mas.policies, mas.swap)
    mas = load({"agents": {"first": {"policy": "x"}, "second": {"policy": "y"}}})
    swapping = members_of(NAMES, mas.agents, mas.policies, SwapSpec(["first", "second"]))
    assert swapping["first"].policies == ("x", "y")
    # They may differ in their optimiser.
    assert at([3], members(b={"overrides": {"actor": {"optim": {"lr": 1e-5}}}})) == ["bac"]


def test_a_run_resumes_with_the_agents_that_exchanged_and_its_period_may_change(two):
    def identity(*agents, every=3):
        return run_identity(Run.of(two(mas__swap={"agents": list(agents), "every": every})))

    assert identity() != identity("solver", "verifier") == identity("solver", "verifier", every=4)
