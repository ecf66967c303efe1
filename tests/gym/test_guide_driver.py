"""A guide and a driver: the data set, the team, and demonstrations."""

from __future__ import annotations

import itertools
from functools import partial
from itertools import islice

import pytest

from verl_mas.config.schema import BranchSpec
from verl_mas.errors import DataError
from verl_mas.gym.guide_driver import (
    GUIDE,
    SHUFFLED,
    SMALL,
    GuideDriver,
    blind_bound,
    boards_of,
    items,
    lessons,
    named,
    shuffled,
    tiny_workflow,
)
from verl_mas.gym.puzzles.base import board, row
from verl_mas.gym.puzzles.kinds.plan_path import PlanPath, distances
from verl_mas.testing.scripted_llm import ScriptedLLM
from verl_mas.util.splits import TEST, TRAIN, split_of
from verl_mas.workflow import Task
from verl_mas.workflow.run import run


def read(item):
    return boards_of(item.row(0, TEST)["extra_info"])


def test_the_guide_sees_the_drivers_board_and_in_the_control_that_of_another_task():
    held_out = items(20, split=TEST)
    for item in held_out:
        puzzle, seen = read(item)
        assert (puzzle.board.layout, puzzle.board.goal) == (seen.board.layout, seen.board.goal)
    mixed = shuffled(held_out)
    assert {item.source for item in mixed} == {SHUFFLED}
    assert [read(item)[0].board.picture for item in mixed] == [read(item)[0].board.picture for item in held_out]
    assert [read(item)[1].board.picture for item in mixed] == [
        read(item)[0].board.picture for item in [*held_out[1:], held_out[0]]
    ]


def test_the_layouts_of_the_splits_are_disjoint_and_goals_are_at_least_three_moves_away():
    train, test = ([read(item)[0] for item in items(300, split=split)] for split in (TRAIN, TEST))
    assert not {one.board.layout for one in train} & {one.board.layout for one in test}
    assert min(one.initial_distance for one in (*train, *test)) == 3
    assert {one.board.layout.count("#") for one in train} == {3}


def open_board(start: int, goal: int) -> PlanPath:
    """Without walls."""
    puzzle = board("plan_path", 0, TRAIN, {"size": 2, "walls": 0, "min_distance": 1})
    assert isinstance(puzzle, PlanPath)
    puzzle.at = start
    assert puzzle.board.layout == "...."
    return puzzle


def test_the_bound_of_a_goal_blind_driver_is_known_on_a_board_of_four_cells():
    # Three goals, equally likely; a walk of one move visits one, of two moves two, and of three all.
    shares = [blind_bound([open_board(0, 3)], moves, min_distance=1) for moves in (1, 2, 3)]
    assert shares == pytest.approx([1 / 3, 2 / 3, 1])
    # With distance 2 the goal is known.
    assert blind_bound([open_board(0, 3)], 2, min_distance=2) == 1


def test_the_bound_is_that_of_the_best_of_all_walks_with_goals_as_likely_as_boards_are_generated():
    for item in items(4, split=TEST):
        task, _ = read(item)
        board_ = task.board
        far = {goal: distances(goal, board_.moves) for goal in range(16) if board_.layout[goal] == "."}
        # A goal is drawn first, then one of the starts that are far enough.
        likely = {
            goal: 1 / sum(one is not None and one >= 3 for one in found)
            for goal, found in far.items()
            if (found[task.at] or 0) >= 3
        }
        found = []
        for walk in itertools.product("UDLR", repeat=5):
            cells = list(itertools.accumulate(walk, partial(_stepped, board_.moves), initial=task.at))
            found.append(sum(likely.get(cell, 0) for cell in set(cells)) / sum(likely.values()))
        assert blind_bound([task], 5, min_distance=3) == pytest.approx(max(found))


def _stepped(moves: tuple[dict[str, int], ...], at: int, move: str) -> int:
    return moves[at].get(move, at)


def test_the_bound_leaves_room_above_it():
    tasks = [read(item)[0] for item in items(60, split=TEST)]
    assert 0.55 < blind_bound(tasks, 6, min_distance=3) < 0.7


def test_rows_without_the_guides_board_are_refused_with_the_command():
    with pytest.raises(DataError, match="verl-mas data guide_driver"):
        boards_of(row("plan_path", 0, TEST, SMALL)["extra_info"])
    with pytest.raises(DataError, match="needs boards of plan_path"):
        boards_of({**row("sudoku", 0, TEST, {"size": 4, "blanks": 4})["extra_info"], GUIDE: 0})


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


def shown(noise: float, count: int = 3_000, speaks: str = "once", control: str = "none"):
    return list(islice(lessons(tiny_workflow(speaks, control), SMALL, noise=noise), count))


def test_without_noise_messages_name_the_goal_and_every_drive_is_the_shortest():
    found = shown(0.0, 400)
    guides = [lesson for lesson in found if lesson.agent == "guide"]
    assert all(lesson.reply == lesson.prompt[16:18] for lesson in guides)
    assert all(split_of(lesson.prompt[:16]) == TRAIN for lesson in guides)
    goal = ""
    for lesson in found:
        if lesson.agent == "guide":
            goal = lesson.reply
        else:
            assert lesson.prompt[7:9] == goal and lesson.reply in "UDLR"
            # A move of a shortest way is never against a wall.
            assert lesson.prompt[2 + "UDLR".index(lesson.reply)] == "."


def test_noise_is_the_share_of_messages_and_moves_that_are_random():
    found = shown(0.5)
    guides = [lesson for lesson in found if lesson.agent == "guide"]
    assert sum(lesson.reply == lesson.prompt[16:18] for lesson in guides) / len(guides) == pytest.approx(
        0.5 + 0.5 / 16, abs=0.05
    )
    drivers = [lesson for lesson in found if lesson.agent == "driver"]
    blocked = sum(lesson.prompt[2 + "UDLR".index(lesson.reply)] == "#" for lesson in drivers) / len(drivers)
    assert 0.1 < blocked < 0.3


def test_variants_have_lessons_of_their_own():
    assert [lesson.agent for lesson in shown(0.5, 6, speaks="every_turn")] == ["guide", "driver"] * 3
    assert {lesson.agent for lesson in shown(0.5, 50, control="all")} == {"driver"}
