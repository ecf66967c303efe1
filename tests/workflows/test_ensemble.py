"""Reasoners, tool users and a judge."""

import pytest

pytest.importorskip("math_verify")

from scripted_sessions import IN_PROCESS, acts_of, box, prompts_of, python
from scripted_sessions import play as play_workflow

from verl_mas.environment.execution.executor import Execution
from verl_mas.workflow import Task
from verl_mas.workflows.ensemble import Ensemble

ASKED = Task.of("q")


def play(replies, *task, k=1, score="math", **args):
    return play_workflow(Ensemble(execution=IN_PROCESS, score=score, **args), replies, *task, k=k)


def reasoners(*answers: object):
    return {f"reasoner_{number}": box(answer) for number, answer in enumerate(answers)}


def test_the_judge_reads_every_proposal_and_its_answer_is_the_teams():
    session, llm = play(lambda request, _: request.agent, ASKED, reasoners=2, score="verl")
    assert [reply.agent for reply in session.replies] == ["reasoner_0", "reasoner_1", "judge"]
    assert session.answer == "judge" and session.team_reward is None and session.info == {}
    [asked] = prompts_of(llm, "judge")
    assert asked.startswith("q\n\nProposal 1:\nreasoner_") and "\n\nProposal 2:\nreasoner_" in asked
    assert "reasoner_0" in asked and "reasoner_1" in asked


def test_the_order_of_the_proposals_is_that_of_the_task_and_differs_between_tasks():
    def order(question: str) -> list[int]:
        task = Task([{"role": "user", "content": question}], ground_truth="1")
        asked = prompts_of(play(lambda request, _: f"by {request.agent}.", task, reasoners=4)[1], "judge")[0]
        return sorted(range(4), key=lambda number: asked.index(f"by reasoner_{number}."))

    orders = [order(f"question {number}") for number in range(20)]
    assert orders == [order(f"question {number}") for number in range(20)]
    assert {first for first, *_ in orders} == {0, 1, 2, 3}


def test_the_judge_reads_programs_with_what_they_printed():
    programs = {"tool_user_0": python("print(1 / 2)"), "tool_user_1": python("1 // 0")}
    session, llm = play({"reasoner": box(2), "judge": box(0.5), **programs}, reasoners=1, tool_users=2)
    [asked] = prompts_of(llm, "judge")
    assert "print(1 / 2)\n```\nIt printed: 0.5" in asked and "It failed: error: ZeroDivisionError" in asked
    assert session.team_reward == 1.0 and session.answer == "0.5"


@pytest.mark.parametrize(
    ("answers", "judge", "best", "majority"),
    [
        ((0.5, "\\frac{1}{2}", 3), 0.5, 1.0, 1.0),
        ((0.5, 3, "3.0"), 3, 1.0, 0.0),
        ((0.5, 3, 4), 0.5, 1.0, 1 / 3),
        ((2, 3, 3), 0.5, 0.0, 0.0),
        (("$", "$", 0.5), 4, 1.0, 1.0),
        (("$", "$", "$"), 4, 0.0, 0.0),
    ],
)
def test_the_judge_is_compared_with_the_best_and_the_majority(answers, judge, best, majority):
    session, _ = play({**reasoners(*answers), "judge": box(judge)})
    acc = float(judge == 0.5)
    compared = {"judge_better": float(acc > majority), "judge_worse": float(acc < majority)}
    assert session.info == pytest.approx({"acc": acc, "best": best, "majority": majority, **compared})


def test_every_agent_branches_and_the_judge_reads_the_committed_proposals():
    session, llm = play(lambda request, branch: box(0.5 if branch == 2 else 9), k=3, reasoners=2)
    assert len(llm.requests) == 3 and len(session.replies) == 9
    for agent in ("reasoner_0", "reasoner_1", "judge"):
        acts = [(reply.committed, reply.team_reward) for reply in acts_of(session, agent)]
        assert acts == [(False, 0.0)] * 2 + [(True, 1.0)]
    assert "boxed{9}" not in prompts_of(llm, "judge")[0]


def test_it_does_not_branch_where_verl_scores_it():
    session, _ = play(box(0.5), ASKED, k=3, reasoners=1, score="verl")
    assert len(session.replies) == 2
    assert {(reply.reward, reply.team_reward) for reply in session.replies} == {(None, None)}
    assert not Ensemble().branches and Ensemble(score="math").branches


def test_an_executor_is_needed_only_for_tool_users():
    nowhere = Execution(executor="nowhere:at_all")
    Ensemble(execution=nowhere).check()
    with pytest.raises(ValueError, match="nowhere"):
        Ensemble(execution=nowhere, tool_users=1).check()
