from __future__ import annotations

from verl_mas.gym.demos.plan_path import draw
from verl_mas.gym.puzzles.base import board
from verl_mas.util.splits import TRAIN
from verl_mas.workflow import ActionList


def codec(puzzle):
    return ActionList(puzzle.action_pattern, 2, None, puzzle.action_help)


def act(agent, text, committed=True):
    return {"agent": agent, "text": text, "committed": committed}


def test_a_session_is_drawn_by_turns_with_only_committed_acts():
    puzzle = board("plan_path", 0, TRAIN, {"size": 4})
    twin, pictures, acts = puzzle.copy(), [puzzle.render()], []
    while not twin.solved:
        move = twin.best_actions()[0]
        twin.step(move)
        pictures.append(twin.render())
        acts += [act("planner", "D"), act("executor", "LLLL", committed=False), act("executor", move)]
    text = draw(puzzle, {"acts": acts}, codec(puzzle), acting="executor")
    lines = text.splitlines()
    assert lines[-1] == f"solved after {len(pictures) - 1} turns"
    assert lines[0].count("p: D") == len(pictures) - 1 and "LLLL" not in text
    for row in range(4):
        assert lines[2 + row].split() == [picture.splitlines()[row] for picture in pictures]


def test_a_malformed_reply_changes_no_board():
    puzzle = board("plan_path", 0, TRAIN, {"size": 4})
    picture = puzzle.render().splitlines()
    text = draw(puzzle, {"acts": [act("executor", "hm")]}, codec(puzzle), acting="executor")
    assert text.endswith("not solved after 1 turns")
    assert text.splitlines()[2].split() == [picture[0]] * 2


def test_a_reply_cannot_steer_the_terminal():
    puzzle = board("plan_path", 0, TRAIN, {"size": 4})
    text = draw(puzzle, {"acts": [act("executor", "\x1b[2J\nline")]}, codec(puzzle), acting="executor")
    assert "\x1b" not in text and "e: \\x1b[2J\\nline" in text
