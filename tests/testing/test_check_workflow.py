"""check_workflow: good workflows pass, each defect is found."""

import asyncio
import gc
import time

import pytest

from verl_mas.config.schema import AgentSpec
from verl_mas.errors import ConfigError
from verl_mas.testing.check_workflow import Watch, check_workflow
from verl_mas.testing.scripted_llm import calls
from verl_mas.workflow import Boxed, Outcome, Workflow, instances
from verl_mas.workflow.base import WORKFLOWS


class Team(Workflow):
    agents = ("a",)


class Blocking(Team):
    async def run(self, task, team):
        reply = await team.a.act("q")
        time.sleep(0.3)
        return Outcome(answer=reply)


class Forking(Team):
    """The forks differ in length, and the shortest one is committed."""

    branches = forks = True

    async def run(self, task, team):
        candidates = await team.a.branch("q")
        outcomes = await team.fork(candidates, self.after, [])
        return next(end for end, reply in zip(outcomes, candidates, strict=True) if reply.committed)

    async def after(self, team, candidate, state):
        for _ in range(candidate.branch):
            await team.a.act("q")
        return Outcome(answer=candidate, reward=-float(candidate.branch))


class Slow(Team):
    async def run(self, task, team):
        await asyncio.sleep(0.1)
        return Outcome(answer=await team.a.act("q"))


@pytest.mark.parametrize(("limit_s", "accepted"), [(0.05, False), (3.0, True)])
def test_a_case_may_take_so_many_seconds(limit_s, accepted):
    assert check_workflow(Slow, limit_s=limit_s).ok == accepted


@pytest.mark.parametrize("workflow", [Forking, *map(WORKFLOWS.find, ("ensemble", "single", "solver_verifier"))])
def test_shipped_workflows_pass_and_one_that_does_not_commit_all_acts_of_its_forks(workflow):
    report = check_workflow(workflow, "<verify>approve</verify> \\boxed{4}")
    assert report.ok and len(report.cases) == 11, str(report)


class Swallowing(Team):
    async def run(self, task, team):
        try:
            return Outcome(answer=await team.a.act("q"))
        except Exception:  # noqa: BLE001  # the mistake
            return Outcome(answer="", reward=0.0)


class Idle(Team):
    async def run(self, task, team):
        return Outcome(reward=1.0)


@pytest.mark.parametrize(
    ("workflow", "case", "words"),
    [
        (Swallowing, "a refused act", "swallowed"),
        (Idle, "good replies", "no agent acted"),
        # The defect may be found in any case, because the watching thread may miss some cases on a busy machine.
        (Blocking, "", f"{__file__}:{Blocking.run.__code__.co_firstlineno + 2} blocks the event loop"),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_a_defect_is_found(workflow, case, words):
    """Other mistakes are in `natural_mistakes.yaml`."""
    report = check_workflow(workflow, "\\boxed{4}")
    assert not report.ok
    assert any(problem.startswith(case) and words in problem for problem in report.problems), report.problems


def test_the_report_says_where_verl_has_to_score_the_answer():
    words, scored = "; verl's reward function scores the answer", check_workflow(WORKFLOWS["single"])
    assert f"rewards: solver 0{words}" in str(scored) and words not in str(check_workflow(Debate))


class Counting(Team):
    """Ends after the third reply, which is "stop"."""

    async def run(self, task, team):
        while (reply := await team.a.act("q")).text == "more":
            pass
        return Outcome(answer=reply, info={"answers": 1})


def test_every_case_starts_with_the_first_reply():
    report = check_workflow(Counting, ["more", "more", "stop"])
    assert report.ok and [case.acts for case in report.cases[:3]] == [3, 3, 3], str(report)


class Debate(Workflow):
    agents = (*instances("debater", 2), "judge")

    async def run(self, task, team):
        for debater in team.role("debater"):
            (await debater.act("q")).parse(Boxed())
        return Outcome(answer=await team.judge.act("q"), reward=0.5, info={"rounds": 1})


def test_replies_are_named_by_agent_or_role():
    report = check_workflow(Debate, {"debater": "\\boxed{1}", "debater_1": "\\boxed{2}", "judge": "three"})
    assert report.ok and report.cases[0].answer == "three", str(report)
    missing = check_workflow(Debate, {"debater": "one"})
    assert any("no scripted reply for agent judge" in problem for problem in missing.problems)


def test_the_report_has_rewards_by_agent_penalties_and_info():
    report = check_workflow(Debate, agents={"debater": AgentSpec(format_penalty=0.25)})
    good = report.cases[0]
    assert good.rewards == {"debater_0": [0.25], "debater_1": [0.25], "judge": [0.5]}
    assert report.ok and "the good reply 'fine' of debater_0 is malformed: no box" in report.notes[0]
    assert (
        "ok   good replies: 3 acts, 2 malformed, answer 'fine'\n"
        "       rewards: debater_0 0.25, debater_1 0.25, judge 0.5\n"
        "       penalties: debater_0 0.25, debater_1 0.25\n"
        "       info: {'rounds': 1}"
    ) in str(report)


def test_an_exception_is_shown_with_its_place_and_its_traceback_once():
    class Broken(Team):
        async def run(self, task, team):
            reply = await team.a.act("q")
            return Outcome(reward=float(reply.text))

    report = check_workflow(Broken, "x")
    place = f"{__file__}:{Broken.run.__code__.co_firstlineno + 2}"
    problem = f"good replies: ended in workflow: ValueError: could not convert string to float: 'x' ({place})"
    assert any(text.startswith(problem) for text in report.problems) and len(str(report)) < 5000
    assert str(report).count("return Outcome(reward=float(reply.text))") == str(report).count("FAIL") == 1
    assert "       also in " in str(report) and report.verdict == "refused: 1 problem"


def press(button: str) -> str:
    """Press a button."""
    if button != "red":
        raise ValueError(f"there is no {button}")
    return "on"


class Careful(Team):
    async def run(self, task, team):
        reply = await team.a.act("q")
        return Outcome(answer=reply, reward=float(any(call.result == "on" for call in reply.tool_calls)))


def test_a_team_with_tools_is_tried_with_wrong_calls_and_calls_without_end():
    agents, right = {"a": AgentSpec(tools=["press"])}, [calls(("press", {"button": "red"})), "done"]
    report = check_workflow(Careful, right, agents=agents, tools=[press])
    assert report.ok, str(report)
    cases = {case.name: case for case in report.cases}
    assert (cases["good replies"].tool_calls, cases["good replies"].rewards) == (1, {"a": [1.0]})
    errors = {name: case.tool_errors for name, case in cases.items() if case.tool_errors}
    assert errors["calls of a tool that does not exist"] == ["Unknown function 'press_2'. Available tools: ['press']"]
    assert len(errors["calls with malformed arguments"]) == 2
    assert "unexpected keyword argument" in errors["calls with wrong arguments"][0]
    assert "not called: the limit is 16 rounds per act" in errors["calls without end"]
    assert "17 tool calls" in str(report) and "a tool call: Unknown" in str(report)
    with pytest.raises(ConfigError, match="did you mean 'press'"):
        check_workflow(Careful, agents={"a": AgentSpec(tools=["pres"])}, tools=[press])


class Collects(Team):
    async def run(self, task, team):
        gc.collect()
        return Outcome(answer=await team.a.act("x"), reward=1.0)


@pytest.mark.filterwarnings("ignore:coroutine")
def test_what_an_earlier_program_forgot_to_await_is_not_reported():
    cycle = [asyncio.sleep(0)]
    cycle.append(cycle)
    del cycle
    assert "never awaited" not in str(check_workflow(Collects))


def test_code_that_started_the_loop_is_not_blamed():
    watch = Watch(__file__)

    async def run():
        with watch.running():
            asyncio.get_running_loop().call_soon(time.sleep, 1.0)
            await asyncio.sleep(0.01)

    asyncio.run(run())
    assert not watch.places
