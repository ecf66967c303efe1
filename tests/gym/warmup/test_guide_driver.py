from __future__ import annotations

from itertools import islice

import pytest

from verl_mas.gym.guide_driver import SMALL, lessons, tiny_workflow
from verl_mas.util.splits import TRAIN, split_of


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
