"""check_workflow: good workflows pass, each defect is found."""

from __future__ import annotations

import pytest

from verl_mas.testing.check_workflow import check_workflow
from verl_mas.workflow import Boxed, Outcome, Workflow
from verl_mas.workflows.ensemble import Ensemble
from verl_mas.workflows.single import Single
from verl_mas.workflows.solver_verifier import SolverVerifier


@pytest.mark.parametrize("workflow", [Single, SolverVerifier, Ensemble])
def test_the_shipped_workflows_pass(workflow):
    report = check_workflow(workflow, "<verify>approve</verify> \\boxed{4}")
    assert report.ok, str(report)
    assert len(report.cases) == 11


class Trusting(Workflow):
    agents = ("a",)

    async def run(self, task, team):
        answer = (await team.a.act("q")).parse(Boxed())
        return Outcome(reward=1.0 if answer + "." == "4." else 0.0)


class Swallowing(Workflow):
    agents = ("a",)

    async def run(self, task, team):
        try:
            return Outcome(answer=await team.a.act("q"))
        except Exception:  # noqa: BLE001  # the defect that the case must find
            return Outcome(answer="", reward=0.0)


class Undecided(Workflow):
    agents = ("a",)

    async def run(self, task, team):
        replies = await team.a.branch("q")
        return Outcome(answer=replies[0])


@pytest.mark.parametrize(
    ("workflow", "case", "words"),
    [
        (Trusting, "malformed replies", "unsupported operand"),
        (Swallowing, "refused acts", "swallowed"),
        (Undecided, "4 branches", "never committed"),
    ],
)
def test_a_defect_is_found(workflow, case, words):
    report = check_workflow(workflow, "\\boxed{4}")
    assert not report.ok
    assert any(problem.startswith(case) and words in problem for problem in report.problems), report.problems
