from __future__ import annotations

import pytest

from verl_mas.gym.demos.plan_path import draw
from verl_mas.gym.puzzles.puzzle import board
from verl_mas.util.splits import TRAIN
from verl_mas.workflow import ActionList


def act(agent, text, committed=True):
    return {"agent": agent, "text": text, "committed": committed}


@pytest.fixture
def puzzle():
    return board("plan_path", 0, TRAIN, {"size": 4})


@pytest.fixture
def drawn(puzzle):
    """The text of a session with these acts."""
    codec = ActionList(puzzle.action_pattern, 2, None, puzzle.action_help)
    return lambda *acts: draw(puzzle, {"acts": acts}, codec, acting="executor")


def test_a_session_is_drawn_by_turns_with_only_committed_acts(puzzle, drawn):
    twin, pictures, acts = puzzle.copy(), [puzzle.render()], []
    while not twin.solved:
        move = twin.best_actions()[0]
        twin.step(move)
        pictures.append(twin.render())
        acts += [act("planner", "D"), act("executor", "LLLL", committed=False), act("executor", move)]
    text = drawn(*acts)
    lines = text.splitlines()
    assert lines[-1] == f"solved after {len(pictures) - 1} turns"
    assert lines[0].count("p: D") == len(pictures) - 1 and "LLLL" not in text
    for row in range(4):
        assert lines[2 + row].split() == [picture.splitlines()[row] for picture in pictures]


def test_a_malformed_reply_changes_no_board_and_cannot_steer_the_terminal(puzzle, drawn):
    picture = puzzle.render().splitlines()
    text = drawn(act("executor", "\x1b[2J\nline"))
    assert text.endswith("not solved after 1 turns") and text.splitlines()[2].split() == [picture[0]] * 2
    assert "\x1b" not in text and "e: \\x1b[2J\\nline" in text
