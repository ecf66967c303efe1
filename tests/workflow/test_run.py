"""Workflows without verl, against a real HTTP server that speaks OpenAI's protocol, and tracebacks of their faults."""

import asyncio
import pickle

import pytest

import verl_mas
from verl_mas.config.schema import AgentSpec, BranchSpec, FaultSpec
from verl_mas.errors import FaultKind, SessionFault, WorkflowError
from verl_mas.testing.scripted_llm import ScriptedLLM
from verl_mas.workflow import Outcome, Workflow
from verl_mas.workflow.run import traceback_of


def solver_or_verifier(body):
    return "<verify>approve</verify>" if "<verify>" in body["messages"][-1]["content"] else "\\boxed{4}"


def test_agents_on_two_endpoints_keep_their_settings_and_keys(serve, monkeypatch):
    monkeypatch.setenv("OUR_KEY", "secret")
    left, right = serve(solver_or_verifier), serve(solver_or_verifier)
    clients = {
        "a": verl_mas.OpenAIClient(left.url, "small", api_key_env="OUR_KEY"),
        "b": verl_mas.OpenAIClient(right.url, "large"),
    }
    agents = {
        "solver": AgentSpec("a", sampling={"temperature": 0.3, "top_k": -1, "max_tokens": 9}),
        "verifier": AgentSpec("b", chat_template_kwargs={"enable_thinking": False}),
    }
    session = asyncio.run(verl_mas.arun("solver_verifier", "2 + 2?", clients, agents=agents))
    assert session.answer == "\\boxed{4}" and [reply.agent for reply in session.replies] == ["solver", "verifier"]
    assert session.replies[0].generation.sampled == 3 and not session.replies[0].generation.has_tokens
    (solver,), (verifier,) = left.bodies, right.bodies
    assert (solver["model"], solver["temperature"], solver["max_tokens"]) == ("small", 0.3, 9) and "top_k" not in solver
    assert verifier["chat_template_kwargs"] == {"enable_thinking": False}
    assert left.headers[0]["Authorization"] == "Bearer secret" and "Authorization" not in right.headers[0]


def test_branches_are_requests_of_their_own(serve, run):
    async def best(task, team):
        return Outcome(answer=team.commit(await team.a.branch(task.messages, max_new_tokens=9)))

    endpoint = serve(lambda body: "fine")
    branch = BranchSpec(k=4, commit="first")
    assert run(best, verl_mas.OpenAIClient(endpoint.url, "m"), branch=branch).session.answer == "fine"
    assert [body["max_tokens"] for body in endpoint.bodies] == [9] * 4


def test_run_inside_an_event_loop_is_refused_with_arun_as_the_fix():
    async def wrong():
        verl_mas.run("single", "q", verl_mas.OpenAIClient("http://x", "m"))

    with pytest.raises(WorkflowError, match="arun"):
        asyncio.run(wrong())


class Divides(Workflow):
    agents = ("a",)

    async def run(self, task, team):
        await team.a.act("q")
        return Outcome(reward=self.helper())

    def helper(self):
        return 1 / 0


class Deep(Divides):
    def helper(self, depth=300):
        # Two frames in turn, which Python does not fold into "previous line repeated".
        return self.other(depth) if depth else 1 / 0

    def other(self, depth):
        return self.helper(depth - 1)


def frames(text):
    return [line.rsplit(" ", 1)[1] for line in text.splitlines() if line.startswith("  File")]


class Twice(Divides):
    async def run(self, task, team):
        await team.a.act("q")
        await team.a.act("q")


@pytest.mark.parametrize(
    ("workflow", "raises", "called", "last"),
    [
        (Divides, None, ["run", "helper"], "ZeroDivisionError: division by zero"),
        # The frame that requested the act, and the frame of the client.
        (Divides, ValueError("no \ud83d"), ["run", "generate"], "ValueError: no \\ud83d"),
        (Twice, None, ["run"], "limit: more than 1 acts"),
    ],
)
def test_the_users_frames_come_first_and_the_exception_last(run, workflow, raises, called, last):
    llm = ScriptedLLM("x", fault=lambda request: raises)
    (fault,) = run(workflow, llm, faults=FaultSpec(max_acts=1, retries=0)).faults
    assert frames(fault.traceback) == called
    assert last in fault.traceback.splitlines()[-1]


def test_a_long_traceback_keeps_its_beginning_and_its_end(run):
    (fault,) = run(Deep, ScriptedLLM("x"), faults=FaultSpec(retries=0)).faults
    assert len(fault.traceback) < 4100 and " characters ..." in fault.traceback
    assert frames(fault.traceback)[:2] == ["run", "helper"] and fault.traceback.endswith("division by zero")


def test_a_fault_without_frames_of_a_user_has_a_traceback_too_and_crosses_processes_with_it():
    assert "late" in traceback_of(SessionFault(FaultKind.LIMIT, "late"))
    fault = SessionFault(FaultKind.REFUSED, "two\nlines", agent="a", turn=1, traceback="File ...")
    copy = pickle.loads(pickle.dumps(fault))
    assert (str(copy), copy.traceback, copy.agent, copy.turn) == (str(fault), "File ...", "a", 1)
    assert copy.line == "refused: two (agent a, turn 1)"
