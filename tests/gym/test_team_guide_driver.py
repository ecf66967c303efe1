from __future__ import annotations

import pytest

from verl_mas.config.schema import BranchSpec
from verl_mas.gym.guide_driver import GuideDriver, boards_of, items, named, shuffled
from verl_mas.testing.check_workflow import check_workflow
from verl_mas.testing.scripted_llm import ScriptedLLM
from verl_mas.util.splits import TEST
from verl_mas.workflow import Task
from verl_mas.workflow.run import run

TASKS = items(6, split=TEST)


def task(item=TASKS[0]) -> Task:
    row = item.row(0, TEST)
    return Task(row["prompt"], ground_truth="", extra_info=row["extra_info"])


def expert(given: Task):
    """A guide that names the goal of the board it sees, and a driver that knows the walls and goes where it says."""
    real, seen = boards_of(given.extra_info)
    here = real.copy()

    def say(request, branch):
        if request.agent == "guide":
            return named(seen.board.goal, seen.board.size)
        here.step(move := here.best_actions()[0])
        return move

    return ScriptedLLM(say)


@pytest.mark.parametrize("item", TASKS)
def test_a_driver_that_is_guided_reaches_the_goal_in_the_fewest_moves(item):
    given = task(item)
    llm = expert(given)
    session = run(GuideDriver(text="compact"), given, llm)
    moves = boards_of(given.extra_info)[0].initial_distance
    assert session.info == {"acc": 1.0, "turns": moves} and session.team_reward == 1.0
    assert [reply.agent for reply in session.replies] == ["guide", *["driver"] * moves]


def test_the_guide_does_not_see_the_driver_and_the_driver_does_not_see_map_or_goal():
    given = task()
    puzzle, _ = boards_of(given.extra_info)
    llm = ScriptedLLM({"guide": "b3", "driver": "U"})
    run(GuideDriver(text="compact", max_turns=2), given, llm)
    guide, first, second = [request.messages[-1]["content"] for request in llm.requests]
    assert guide == f"{puzzle.board.layout}{named(puzzle.board.goal, 4)}G"
    assert first[:2] == named(puzzle.at, 4) and set(first[2:6]) <= {".", "#"} and first[6:] == "-b3D"
    assert second[6:] == "Ub3D"
    words = ScriptedLLM({"guide": "<message>b 3</message>", "driver": "<actions>U</actions>"})
    run(GuideDriver(max_turns=1), given, words)
    guide, driver = [request.messages[-1]["content"] for request in words.requests]
    assert puzzle.board.picture in guide and "A" not in puzzle.board.picture
    assert puzzle.board.picture not in driver and f"You are at {named(puzzle.at, 4)}" in driver and ": b3" in driver


def test_in_the_control_the_guide_names_the_goal_of_another_board():
    item = shuffled(TASKS)[0]
    llm = ScriptedLLM({"guide": "b3", "driver": "U"})
    run(GuideDriver(text="compact", max_turns=1), task(item), llm)
    _, other = boards_of(task(TASKS[1]).extra_info)
    assert llm.requests[0].messages[-1]["content"] == f"{other.board.layout}{named(other.board.goal, 4)}G"


def test_a_guide_that_speaks_every_turn_knows_the_last_move():
    llm = ScriptedLLM({"guide": "b3", "driver": "D"})
    session = run(GuideDriver(text="compact", speaks="every_turn", max_turns=3), task(), llm)
    assert [reply.agent for reply in session.replies] == ["guide", "driver"] * 3
    assert [request.messages[-1]["content"][-2:] for request in llm.requests[::2]] == ["-G", "DG", "DG"]


@pytest.mark.parametrize(("control", "knows"), [("all", True), ("part", False)])
def test_the_single_driver_knows_everything_or_only_what_is_around_it(control, knows):
    given = task()
    puzzle, _ = boards_of(given.extra_info)
    workflow = GuideDriver(text="compact", control=control, max_turns=1)
    llm = ScriptedLLM("U")
    session = run(workflow, given, llm)
    prompt = llm.requests[0].messages[-1]["content"]
    assert [reply.agent for reply in session.replies] == ["driver"]
    assert (puzzle.board.layout in prompt) == knows and prompt.endswith("--D" if not knows else "-D")


def test_a_reply_that_cannot_be_read_is_an_empty_message_or_a_turn_without_a_move():
    llm = ScriptedLLM({"guide": "zz", "driver": "?"})
    session = run(GuideDriver(text="compact", max_turns=2), task(), llm)
    assert all(reply.malformed for reply in session.replies) and session.info == {"acc": 0.0, "turns": 2}
    assert llm.requests[-1].messages[-1]["content"].endswith("--D")


def test_of_several_candidates_only_a_move_to_the_goal_is_rewarded():
    given = task()
    puzzle, _ = boards_of(given.extra_info)
    while puzzle.initial_distance and puzzle.distance() > 1:
        puzzle.step(puzzle.best_actions()[0])
    # One move before the goal.
    workflow = GuideDriver(text="compact", max_turns=30)
    start = workflow.opening(puzzle, puzzle)
    best = puzzle.best_actions()[0]
    wrong = next(move for move in "UDLR" if move != best)
    real, _ = boards_of(given.extra_info)

    def say(request, branch):
        if request.agent == "guide":
            return "b3"
        return [wrong, best][branch] if real.distance() == 1 else step(real, branch)

    def step(board, branch):
        move = board.best_actions()[0]
        if branch == 1:
            board.step(move)
        return move

    session = run(workflow, given, ScriptedLLM(say), branch=BranchSpec(k=2))
    assert not workflow.over(start) and session.info["acc"] == 1.0
    last = session.replies[-2:]
    assert [reply.team_reward for reply in last] == [0.0, 1.0]
    assert {reply.team_reward for reply in session.replies[:-2]} == {0.0}


@pytest.mark.parametrize("arguments", [{}, {"text": "compact", "speaks": "every_turn"}, {"control": "all"}])
def test_it_passes_check_workflow(arguments):
    report = check_workflow(lambda: GuideDriver(max_turns=2, **arguments), "<actions>U</actions>", task())
    assert report.ok, str(report)
