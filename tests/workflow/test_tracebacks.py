from __future__ import annotations

import pickle

import pytest

from verl_mas.config.schema import FaultSpec
from verl_mas.errors import FaultKind, SessionFault
from verl_mas.testing.scripted_llm import ScriptedLLM
from verl_mas.workflow import Outcome, Workflow
from verl_mas.workflow.run import traceback_of


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
        # Where the act was asked for, and what the client raised.
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
