from itertools import count

import pytest

from verl_mas.config.schema import FaultSpec
from verl_mas.errors import SessionFault
from verl_mas.testing.scripted_llm import ScriptedLLM
from verl_mas.workflow import Task
from verl_mas.workflow.run import run
from verl_mas.workflows.recursive import Recursive

TASK = Task([{"role": "user", "content": "How many moons have Mars and Earth?"}], ground_truth="3")
TWO = "<subtask>Moons of Mars?</subtask><subtask>Moons of Earth?</subtask>"
ONE = "<subtask>Moons of Phobos?</subtask>"
BOX = r"\boxed{3}"


def play(*replies, task=TASK, team=Recursive, **args):
    llm = ScriptedLLM({f"solver_{depth}": reply for depth, reply in enumerate(replies)})
    return run(team(score="em", **args), task, llm, faults=FaultSpec(retries=0)), llm


def acts(session):
    return [(reply.agent, reply.instance, reply.turn) for reply in session.replies]


def rewards(session):
    return [(reply.agent, reply.team_reward) for reply in session.replies]


def test_a_copy_reads_its_part_alone_and_may_delegate_as_well():
    session, llm = play([TWO, BOX], [ONE, BOX, BOX], BOX)
    assert sorted(acts(session)) == [
        *(("solver_0", 1, turn) for turn in (0, 1)),
        *(("solver_1", 1, turn) for turn in (0, 1)),
        ("solver_1", 2, 0),
        ("solver_2", 1, 0),
    ]
    prompts = [request.messages[0]["content"] for request in llm.requests]
    assert "Earth" in prompts[0] and "Earth" not in prompts[1]
    assert "Subtask: Moons of Earth?\nReport: \\boxed{3}" in llm.requests[-1].messages[-1]["content"]
    assert session.team_reward == 1.0
    assert session.info == {"acc": 1.0, "copies": 4, "depth": 2, "critical_path": 5}


def test_at_the_last_depth_a_delegation_is_malformed_and_ends_the_copy():
    session, llm = play([TWO, BOX], TWO, max_depth=1)
    assert [reply.malformed for reply in session.replies][1] == "2 subtasks, not an answer"
    assert "No further subtask" in llm.requests[1].messages[0]["content"] and len(session.replies) == 4


def test_a_copy_whose_budget_is_two_acts_answers():
    session, llm = play([TWO, BOX], BOX, max_acts=4)
    assert "No further subtask" in llm.requests[1].messages[0]["content"]
    # After the delegation, the rest of the budget is needed for the answer.
    assert "No further subtask" in llm.requests[-1].messages[-1]["content"] and len(session.replies) == 4


@pytest.mark.parametrize("max_acts", range(1, 14))
def test_no_session_has_more_acts_than_its_budget(max_acts):
    team, new = Recursive(score="em", max_acts=max_acts, max_depth=8), count()
    llm = ScriptedLLM(lambda request, _: f"<subtask>{next(new)}</subtask><subtask>{next(new)}</subtask>")
    assert max_acts - 2 < len(run(team, TASK, llm).replies) <= team.most_acts(1)


class Deeper(Recursive):
    """A team whose format lets every copy delegate."""

    def moves(self, task, node, at_most):
        return super().moves(task, node, 5)


@pytest.mark.parametrize(
    ("says", "args"),
    [
        (r"a copy at depth 1 needs more than mas\.workflow\.args\.max_depth=1", {"max_depth": 1}),
        (r"a copy at depth 1 needs more than mas\.workflow\.args\.max_acts=7", {"max_acts": 7}),
        (r"a copy at depth 0 needs more than mas\.workflow\.args\.max_parts=1", {"max_parts": 1}),
        (r"a copy at depth 0 needs more than mas\.workflow\.args\.max_tokens=20", {"max_tokens": 20}),
    ],
)
def test_a_recursion_without_an_end_is_a_fault_that_names_the_limit(says, args):
    parts = [f"<subtask>part {depth} a</subtask><subtask>part {depth} b</subtask>" for depth in range(4)]
    with pytest.raises(SessionFault, match=f"limit: {says}"):
        play(*parts, team=Deeper, **{"max_depth": 3, **args})


@pytest.mark.parametrize("depth", [0, 1])
def test_a_part_that_is_the_task_of_a_copy_above_it_reaches_no_copy(depth):
    same = "<subtask>how many moons have Mars  and Earth?</subtask>"
    session, llm = play(*([same, BOX] if depth == 0 else [ONE, BOX], [same, BOX]), max_depth=3)
    found = next(reply for reply in session.replies if reply.text == same)
    assert found.malformed == "a subtask that is the task itself"
    assert "could not be read: a subtask that is the task itself" in llm.requests[-1 - depth].messages[-1]["content"]


def test_the_first_copys_success_is_that_of_all_where_only_it_has_a_ground_truth():
    for answer, success in ((BOX, 1.0), (r"\boxed{4}", 0.0), ("none", 0.0)):
        session, _ = play([TWO, answer, "none"], BOX, max_depth=1, max_acts=4)
        assert {reward for _, reward in rewards(session)} == {success, 1.4 * success}
