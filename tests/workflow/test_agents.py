"""The agents of a team, their settings, and agents that exchange their policies."""

import asyncio
from dataclasses import replace

import pytest

from verl_mas.config import load
from verl_mas.config.run import Run
from verl_mas.config.schema import AgentSpec, PolicySpec, RemoteSpec, SwapSpec
from verl_mas.errors import ConfigError
from verl_mas.testing.scripted_llm import ScriptedLLM
from verl_mas.trainer.checkpoint import run_identity
from verl_mas.workflow import Outcome, Task, Workflow
from verl_mas.workflow.agents import resolve_agents
from verl_mas.workflow.run import run_session
from verl_mas.workflow.session import SessionConfig


def agent(agent, **policy):
    mas = load({"agents": {"a": agent}, "policies": {"main": policy}})
    return resolve_agents(("a",), mas.agents, mas.policies)["a"]


@pytest.mark.parametrize(
    ("agents", "says"),
    [
        (("Rows",), "names are part of metric names"),
        (("main", "Main"), "(?s)agent name 'main'.*no two alike.*agent name 'Main'"),
    ],
)
def test_agents_whose_folders_or_metrics_would_be_one_are_refused(agents, says):
    with pytest.raises(ConfigError, match=says):
        resolve_agents(agents, {}, {})


@pytest.mark.parametrize("setting", [{"repetition_penalty": 1.1}, {"json_schema": "{}"}, {"structured_outputs": {}}])
def test_a_penalty_or_a_grammar_is_refused_only_for_an_agent_that_trains(setting):
    sampling = {"extra": setting}
    for given in (sampling, setting) if "repetition_penalty" in setting else (sampling,):
        with pytest.raises(ConfigError, match="log-probs without penalties and grammars"):
            agent({"sampling": given})
    assert agent({"sampling": sampling}, trainable=False).sampling(Task([]), {}) == setting
    agent({"validation_sampling": sampling})


def test_agents_of_frozen_and_remote_policies_do_not_train():
    policies = {
        "main": PolicySpec(),
        "cold": PolicySpec(trainable=False),
        "far": PolicySpec(remote=RemoteSpec("http://x", "m")),
    }
    specs = {"a": AgentSpec("main"), "b": AgentSpec("cold"), "c": AgentSpec("far"), "d": AgentSpec(trainable=False)}
    agents = resolve_agents(tuple("abcd"), specs, policies)
    assert [agents[name].trainable for name in "abcd"] == [True, False, False, False]


NAMES = ("first", "second", "third")


def swapping(every=2, agents=NAMES[:2], **policies):
    mas = load(
        {
            "policies": {"a": {}, "b": {}, "c": {}} | policies,
            "agents": {name: {"policy": policy} for name, policy in zip(NAMES, "abc", strict=True)},
            "swap": {"agents": list(agents), "every": every},
        }
    )
    return resolve_agents(NAMES, mas.agents, mas.policies, mas.swap)


def at(steps, agents, **task):
    """List the policies of the three agents for each step."""
    return ["".join(agents[name].policy(Task([], step=step, **task)) for name in NAMES) for step in steps]


def test_agents_exchange_their_policies_after_so_many_training_steps_and_others_keep_theirs():
    two, three = swapping(every=2), swapping(every=1, agents=NAMES)
    assert at(range(8), two) == ["abc", "abc", "abc", "bac", "bac", "abc", "abc", "bac"], "0 is outside of training"
    assert at(range(1, 5), three) == ["abc", "bca", "cab", "abc"]
    assert all(sorted(policies) == ["a", "b", "c"] for policies in at(range(1, 40), swapping(every=3, agents=NAMES)))
    assert {*at(range(6), three, validate=True)} == {"abc"}, "validation is with the configured policies"


class Both(Workflow):
    agents = NAMES

    async def run(self, task, team):
        await team.first.act("x")
        return Outcome(answer=await team.second.act("y"), reward=1.0)


@pytest.mark.parametrize(("step", "played"), [(2, ["a", "b"]), (3, ["b", "a"])])
def test_an_act_is_served_by_the_policy_of_its_step_and_recorded_with_it(step, played):
    clients = {name: ScriptedLLM(f"by {name}") for name in "abc"}
    config = SessionConfig(swapping(every=2), clients)
    result = asyncio.run(run_session(Both, replace(Task.of("q"), step=step), config))
    assert [(reply.policy, reply.text) for reply in result.session.replies] == [(name, f"by {name}") for name in played]


def test_agents_of_one_policy_have_nothing_to_exchange_and_unknown_policies_are_left_to_the_check_of_all_agents():
    mas = load({"swap": {"agents": ["first", "second"]}})
    with pytest.raises(ConfigError, match=r"nothing to exchange(.|\n)*\+\+mas.agents.second.policy=llm1"):
        resolve_agents(NAMES, mas.agents, mas.policies, mas.swap)
    mas = load({"agents": {"first": {"policy": "x"}, "second": {"policy": "y"}}})
    unknown = resolve_agents(NAMES, mas.agents, mas.policies, SwapSpec(["first", "second"]))
    assert unknown["first"].policies == ("x", "y")
    # Exchanged policies may differ in their optimiser.
    assert at([3], swapping(b={"overrides": {"actor": {"optim": {"lr": 1e-5}}}})) == ["bac"]


def test_a_run_resumes_with_the_agents_that_exchanged_and_its_period_may_change(two):
    def identity(*agents, every=3):
        return run_identity(Run.of(two(mas__swap={"agents": list(agents), "every": every})))

    assert identity() != identity("solver", "verifier") == identity("solver", "verifier", every=4)
