"""The tool user alone."""

from __future__ import annotations

import pytest

pytest.importorskip("math_verify")

from in_process_programs import NAME

from verl_mas.config.schema import BranchSpec
from verl_mas.execution.executor import Execution
from verl_mas.testing.scripted_llm import ScriptedLLM
from verl_mas.workflow import Task
from verl_mas.workflow.run import run
from verl_mas.workflows.single_tool_user import SingleToolUser

EXECUTION = Execution(executor=NAME)
TASK = Task([{"role": "user", "content": "What is a half?"}], ground_truth="\\frac{1}{2}")


def code(text: str) -> str:
    return f"```python\n{text}\n```"


def play(replies, *, k: int = 1, **args):
    llm = ScriptedLLM(replies)
    return run(SingleToolUser(execution=EXECUTION, **args), TASK, llm, branch=BranchSpec(k=k)), llm


def test_the_first_answer_that_can_be_read_is_the_answer():
    session, _ = play(code("print(1 / 2)"))
    assert session.answer == "0.5" and session.info == {"acc": 1.0, "turns": 1} and session.team_reward == 1.0
    assert play(code("print(2)"))[0].info == {"acc": 0.0, "turns": 1}


def test_after_a_failure_it_reads_its_program_and_the_error():
    session, llm = play([code("1 // 0"), "no code", code("print(0.5)")])
    assert session.info == {"acc": 1.0, "turns": 3}
    assert "1 // 0\n```\nIt failed: error: ZeroDivisionError" in llm.requests[1].messages[-1]["content"]
    assert [reply.reward for reply in session.replies] == pytest.approx([0.1, 0.0, 1.0])


def test_it_ends_after_the_last_turn():
    session, _ = play(code("while True: pass"), max_turns=2)
    assert session.info == {"acc": 0.0, "turns": 2} and session.answer is None


def test_of_the_candidates_the_best_is_committed():
    session, _ = play(lambda request, branch: code(f"print({branch} / 2)"), k=3)
    assert [reply.committed for reply in session.replies] == [False, True, False]
    assert [reply.team_reward for reply in session.replies] == [0.0, 1.0, 0.0]
