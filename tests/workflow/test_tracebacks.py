from __future__ import annotations

import pickle

from verl_mas.config.schema import FaultSpec
from verl_mas.errors import FaultKind, SessionFault
from verl_mas.testing.scripted_llm import ScriptedLLM
from verl_mas.workflow import Outcome, Workflow
from verl_mas.workflow.run import traceback_of

ONCE = FaultSpec(retries=0)


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


def test_the_users_frames_come_first_and_the_exception_last(run):
    (fault,) = run(Divides, ScriptedLLM("x"), faults=ONCE).faults
    assert frames(fault.traceback) == ["run", "helper"]
    assert fault.traceback.splitlines()[-1] == "ZeroDivisionError: division by zero"


def test_a_refused_act_shows_where_it_was_asked_for_and_what_the_client_raised(run):
    (fault,) = run(Divides, ScriptedLLM("x", fault=lambda request: ValueError("no \ud83d")), faults=ONCE).faults
    assert frames(fault.traceback) == ["run", "generate"]
    assert fault.traceback.endswith("ValueError: no \\ud83d")


def test_an_act_over_the_limit_shows_where_it_was_asked_for(run):
    class Twice(Divides):
        async def run(self, task, team):
            await team.a.act("q")
            await team.a.act("q")

    (fault,) = run(Twice, ScriptedLLM("x"), faults=FaultSpec(max_acts=1, retries=0)).faults
    assert fault.kind is FaultKind.LIMIT and frames(fault.traceback) == ["run"]


def test_a_long_traceback_keeps_its_beginning_and_its_end(run):
    (fault,) = run(Deep, ScriptedLLM("x"), faults=ONCE).faults
    assert len(fault.traceback) < 4100 and " characters ..." in fault.traceback
    assert frames(fault.traceback)[:2] == ["run", "helper"] and fault.traceback.endswith("division by zero")


def test_a_fault_without_frames_of_a_user_has_a_traceback_too():
    assert "late" in traceback_of(SessionFault(FaultKind.LIMIT, "late"))


def test_a_fault_crosses_processes_with_its_traceback():
    fault = SessionFault(FaultKind.REFUSED, "two\nlines", agent="a", turn=1, traceback="File ...")
    copy = pickle.loads(pickle.dumps(fault))
    assert (str(copy), copy.traceback, copy.agent, copy.turn) == (str(fault), "File ...", "a", 1)
    assert copy.line == "refused: two (agent a, turn 1)"
