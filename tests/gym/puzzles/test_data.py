"""Boards as a data set, and demonstrations on them."""

import random
from itertools import islice

import pytest

from verl_mas.gym.puzzles.data import lessons, noisy_plan
from verl_mas.gym.puzzles.puzzle import board
from verl_mas.gym.puzzles.teams import PlannerExecutor
from verl_mas.util.splits import TRAIN
from verl_mas.workflow import Malformed

KINDS = {"plan_path": {"size": 4}, "sokoban": {"size": 5, "min_distance": 2}, "sudoku": {"size": 4, "blanks": 4}}


def test_more_noise_gives_more_wrong_actions():
    def wrong(noise):
        puzzles = [board("plan_path", seed, TRAIN, {"size": 6}) for seed in range(400)]
        return sum(noisy_plan(p, 1, noise, random.Random(i))[0] not in p.best_actions() for i, p in enumerate(puzzles))

    assert wrong(0.0) == 0 < wrong(0.4) < wrong(1.0)


@pytest.mark.parametrize("name", KINDS)
def test_lessons_are_the_workflows_own_prompts_with_replies_that_it_reads(name):
    workflow = PlannerExecutor(text="compact", moves=2)
    taught = list(islice(lessons(workflow, name, KINDS[name], noise=0.5), 60))
    assert [lesson.agent for lesson in taught[:4]] == ["planner", "executor"] * 2
    codec = workflow.codec(board(name, 0, TRAIN, KINDS[name]))
    for plan, execute in zip(taught[::2], taught[1::2], strict=True):
        assert not isinstance(codec.parse(plan.reply), Malformed)
        assert plan.prompt[-2:] == " P" and execute.prompt == f"{plan.prompt[:-1]}{plan.reply} E"
