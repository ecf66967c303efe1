"""The shipped workflows: their prompts and their answers."""

from __future__ import annotations

import pytest

from verl_mas.testing.scripted_llm import ScriptedLLM
from verl_mas.workflow.run import run
from verl_mas.workflows.solver_verifier import SolverVerifier

REJECT, APPROVE = "No. <verify>reject</verify>", "Yes. <verify>approve</verify>"


def agents(session):
    return [reply.agent for reply in session.replies]


def test_single_sends_the_dataset_prompt_as_it_is():
    llm = ScriptedLLM("4")
    messages = [{"role": "system", "content": "s"}, {"role": "user", "content": "2 + 2?"}]
    assert run("single", messages, llm).answer == "4"
    assert list(llm.requests[0].messages) == messages


def test_an_approved_proposal_is_the_answer():
    session = run(SolverVerifier(max_rounds=3), "2 + 2?", ScriptedLLM({"solver": "4", "verifier": APPROVE}))
    assert agents(session) == ["solver", "verifier"] and session.answer == "4" and session.info == {"reviews": 1}


@pytest.mark.parametrize("verdict", [REJECT, "approve", "", "<verify>ok</verify>", APPROVE + REJECT])
def test_without_an_approval_another_proposal_is_made_with_the_review_in_its_prompt(verdict):
    llm = ScriptedLLM({"solver": ["5", "4"], "verifier": verdict})
    session = run("solver_verifier", "2 + 2?", llm)
    assert agents(session) == ["solver", "verifier", "solver"] and session.answer == "4"
    asked = llm.requests[2].messages[-1]["content"]
    assert asked.startswith("2 + 2?") and "An earlier solution:\n5" in asked and f"wrote:\n{verdict}" in asked
    assert (session.replies[1].malformed is None) == (verdict == REJECT)


def test_one_round_has_no_review():
    assert agents(run(SolverVerifier(max_rounds=1), "q", ScriptedLLM("x"))) == ["solver"]
