"""Branches of a conversation: summaries that the main thread reads, penalties, and refused calls."""

import asyncio

import pytest

from verl_mas.config.schema import AgentSpec, FaultSpec
from verl_mas.errors import ConfigError, FaultKind
from verl_mas.testing.scripted_llm import ScriptedLLM, calls
from verl_mas.workflow import Outcome, Task, Workflow
from verl_mas.workflow.base import find
from verl_mas.workflow.rewards import Score
from verl_mas.workflow.run import run_session, session_config
from verl_mas.workflows.folded import Folding, FoldingRules

BRANCH, RETURN = ("branch", {"prompt": "read it"}), ("return", {"message": "one"})
READ = ("page", {"number": 1})


def page(number: int) -> str:
    """A page.

    Args:
        number: Its number.
    """
    return f"page {number}: " + "text " * 9


async def scored(session):
    return Score(1.0)


def play(workflow, llm, *, task=None, agents=None, faults=None):
    config = session_config(workflow(), llm, agents=agents, faults=faults or FaultSpec(retries=0))
    return asyncio.run(run_session(workflow, task or Task.of("q"), config, scored))


def folded(*script, judge=None, spec=None, faults=None, **rules):
    """Run a session with one main thread, and return it and its model."""

    class Main(Workflow):
        agents = ("a",)

        async def run(self, task, team):
            folding = Folding(team.a, [page], FoldingRules(**rules), judge)
            return Outcome(answer=await folding.act(task.messages), reward=1.0, info=folding.info)

    llm = ScriptedLLM([*(calls(*given) if isinstance(given, list) else given for given in script), "end"])
    return play(Main, llm, agents={"a": spec or AgentSpec()}, faults=faults), llm


def branches_and_main(*script, **settings):
    done, _ = folded(*script, **settings)
    assert not done.failed, done.faults
    *branches, main = done.session.replies
    return branches, main


def test_a_branch_starts_from_the_main_thread_in_which_only_its_summary_stays():
    done, llm = folded([READ], [BRANCH], [READ], [RETURN], "It is one.")
    branch, main = done.session.replies
    assert (branch.agent, branch.instance, main.instance, main.text) == ("a", 1, 0, "It is one.")
    before = llm.requests[1].messages
    assert branch.messages == [*before, main.steps[2], {**branch.messages[-1], "role": "tool"}]
    assert branch.messages[-1] == {**main.steps[3], "content": FoldingRules().instruction}, "of the same call"
    assert [step["content"] for step in main.steps] == ["", page(1), "", "one", "It is one."]
    assert [call.result for call in (*main.tool_calls, *branch.tool_calls)] == [page(1), "one", page(1), "one"]
    assert len({tuple(tool["function"]["name"] for tool in request.tools) for request in llm.requests}) == 1
    assert (main.reward, branch.reward) == (None, None), "nothing to penalise"
    assert done.session.info == {"branches": 1, "branches_failed": 0}
    assert [(row.first.instance, row.reward.score) for row in done.session.rows()] == [(1, 1.0), (0, 1.0)]


LONG = ("return", {"message": "x" * 200})
ALONE = "the only call of its reply"


@pytest.mark.parametrize(
    ("script", "fault"),
    [
        (["Never mind."], "it ended without `return`"),
        ([[READ], [LONG]], "its summary has 200 characters and replaces 53"),
        ([[RETURN]], "its summary has 3 characters and replaces 0"),
        ([[READ], [("return", {"message": " "})]], "`return` has a `message`, which is a text"),
        ([[READ], [("return", "{")]], "`return` has a `message`, which is a text"),
        ([[READ], [RETURN, RETURN]], ALONE),
        ([[RETURN, READ]], ALONE),
    ],
)
def test_a_branch_without_a_summary_is_malformed_and_the_main_thread_reads_why(script, fault):
    (branch,), main = branches_and_main([BRANCH], *script)
    assert fault in branch.malformed and branch.malformed.startswith("a branch that failed")
    assert main.steps[1]["content"] == f"The branch failed: {branch.malformed.partition(': ')[2]}."
    assert main.malformed is None and main.reward is None and main.text == "end"
    last = branch.sampled[-1] / sum(branch.sampled)
    assert branch.reward == pytest.approx(-last), "of its last reply alone"
    assert all(call.error for call in branch.tool_calls[-len(script[-1]) :]) or script[-1] == "Never mind."


@pytest.mark.parametrize(
    ("called", "error"),
    [
        ([RETURN], "you are not in a branch"),
        ([("branch", {"prompt": ""})], "`branch` has a `prompt`"),
        ([BRANCH, BRANCH], ALONE),
        ([BRANCH, READ], ALONE),
    ],
)
def test_a_wrong_call_in_the_main_thread_opens_no_branch_and_is_penalised(called, error):
    branches, main = branches_and_main(called, failed=0.5)
    assert branches == [] and error in main.tool_calls[0].error
    assert main.reward == pytest.approx(-0.5 * main.sampled[0] / sum(main.sampled))


def test_a_branch_in_a_branch_is_refused():
    (branch,), main = branches_and_main([BRANCH], [READ], [BRANCH], [RETURN])
    assert "you are in a branch" in branch.tool_calls[1].error
    assert main.steps[1]["content"] == "one"
    assert branch.reward == pytest.approx(-branch.sampled[1] / sum(branch.sampled))


def test_calls_beyond_the_budget_of_a_branch_fail_and_the_main_thread_has_its_own():
    script = [[BRANCH], [READ], [READ], [RETURN], [READ], [READ]]
    (branch,), main = branches_and_main(*script, branch_calls=1)
    assert [bool(call.error) for call in branch.tool_calls] == [False, True, False]
    assert "an act can make 1 calls" in branch.tool_calls[1].error
    assert [bool(call.error) for call in main.tool_calls] == [False, False, False]
    spec = AgentSpec(max_tool_rounds=1)
    (branch,), _ = branches_and_main([BRANCH], [READ], [READ], spec=spec)
    assert "without `return`; not called: the limit is 1 rounds per act" in branch.malformed
    (branch,), main = branches_and_main([BRANCH], [READ], [RETURN], spec=spec)
    assert branch.malformed is None and main.steps[1]["content"] == "one", "`return` needs no round"


@pytest.mark.parametrize(("verdict", "expected"), [(False, -0.2), (True, None), (None, None)])
def test_a_branch_out_of_scope_is_penalised_as_a_whole_if_somebody_says_so(verdict, expected):
    judged = []

    async def judge(branch):
        judged.append((branch.prompt, branch.summary))
        return verdict

    (branch, failed), _ = branches_and_main([BRANCH], [READ], [RETURN], [BRANCH], "No.", judge=judge)
    assert branch.reward == (expected if expected is None else pytest.approx(expected))
    assert judged == [("read it", "one")] and failed.reward == -1.0, "a branch without a summary is not judged"


def test_limits_of_a_session_hold_in_branches():
    endless = [[BRANCH], [READ], [RETURN]] * 9
    done, _ = folded(*endless, faults=FaultSpec(retries=0, max_acts=4))
    assert done.failed and done.faults[0].kind is FaultKind.LIMIT and "more than 4 acts" in done.faults[0].cause
    with pytest.raises(ConfigError, match="unfolded"):
        FoldingRules(unfolded=-1.0)


def test_a_branch_may_take_longer_than_a_call_of_a_tool():
    llm = ScriptedLLM([calls(BRANCH), "No.", "end"], latency=0.2)
    session = play(find("folded"), llm, agents={"solver": AgentSpec(tool_timeout_s=0.1)}).session
    assert "failed" in session.replies[-1].steps[1]["content"] and session.answer == "end"


def test_the_judge_of_the_workflow_acts_in_training_alone_and_is_not_trained():
    said = calls(RETURN, text="I know it.")
    for validate, verdict, reward in ((False, "outside", -0.2), (False, "unsure", None), (True, "outside", None)):
        llm = ScriptedLLM({"solver": [calls(BRANCH), said, "end"], "judge": f"<scope>{verdict}</scope>"})
        task = Task([{"role": "user", "content": "q"}], validate=validate)
        done = play(lambda: find("folded")(judged=True), llm, task=task)
        branch, *probes, _ = done.session.replies
        assert branch.reward == (reward if reward is None else pytest.approx(reward))
        assert [probe.probe for probe in probes] == [True] * (not validate)
        assert done.session.team_reward == 1.0, "verl's reward function scores the answer, too"
