"""A guide and a driver: the data set, the team, and demonstrations."""

from itertools import islice

import pytest
from played import played, task_of

from verl_mas.config.hydra.recipe.guide_driver import team as guide_driver
from verl_mas.config.hydra.recipe.guide_driver.team import (
    COLOURS,
    GUIDE,
    SHUFFLED,
    SMALL,
    GuideDriver,
    boards_of,
    named,
)
from verl_mas.errors import DataError
from verl_mas.gym.puzzles.kinds.plan_path import PlanPath
from verl_mas.gym.puzzles.puzzle import row
from verl_mas.gym.warmup import tiny
from verl_mas.testing.scripted_llm import ScriptedLLM
from verl_mas.util.splits import TEST, TRAIN, split_of
from verl_mas.workflow.run import run


def read(item):
    return boards_of(item.row(0, TEST)["extra_info"])


def test_the_guide_sees_the_drivers_board_and_in_the_control_that_of_another_task():
    held_out = guide_driver.items(20, split=TEST)
    for item in held_out:
        puzzle, seen = read(item)
        assert (puzzle.board.layout, puzzle.board.goal) == (seen.board.layout, seen.board.goal)
    mixed = guide_driver.shuffled(held_out)
    assert {item.source for item in mixed} == {SHUFFLED}
    assert [read(item)[0].board.picture for item in mixed] == [read(item)[0].board.picture for item in held_out]
    of_next = [read(item)[0].board.picture for item in [*held_out[1:], held_out[0]]]
    assert [read(item)[1].board.picture for item in mixed] == of_next


def test_rows_without_the_guides_board_are_refused_with_the_command():
    with pytest.raises(DataError, match="verl-mas data guide_driver"):
        boards_of(row("plan_path", 0, TEST, SMALL)["extra_info"])
    with pytest.raises(DataError, match="needs boards of plan_path"):
        boards_of({**row("sudoku", 0, TEST, {"size": 4, "blanks": 4})["extra_info"], GUIDE: 0})


ITEMS = guide_driver.items(6, split=TEST)
TASK = task_of(ITEMS[0].row(0, TEST))
PUZZLE, _ = boards_of(TASK.extra_info)


def goal_of(puzzle: PlanPath) -> str:
    return named(puzzle.board.goal, puzzle.board.size)


@pytest.mark.parametrize("item", ITEMS)
def test_a_driver_that_is_guided_reaches_the_goal_in_the_fewest_moves(item):
    here, seen = read(item)

    def say(request, branch):
        if request.agent == "guide":
            return goal_of(seen)
        here.step(move := here.best_actions()[0])
        return move

    session, _ = played(GuideDriver(text="compact"), task_of(item.row(0, TEST)), say)
    moves = here.initial_distance
    assert session.info == {"acc": 1.0, "turns": moves} and session.team_reward == 1.0
    assert [reply.agent for reply in session.replies] == ["guide", *["driver"] * moves]


def test_the_guide_does_not_see_the_driver_and_the_driver_does_not_see_map_or_goal():
    here = named(PUZZLE.at, 4)
    _, prompts = played(GuideDriver(text="compact", max_turns=2), TASK, {"guide": "b3", "driver": "U"})
    guide, first, second = prompts
    assert guide == f"{PUZZLE.board.layout}{goal_of(PUZZLE)}G"
    assert first[:2] == here and set(first[2:6]) <= {".", "#"} and first[6:] == "-b3D" and second[6:] == "Ub3D"
    words = {"guide": "<message>b 3</message>", "driver": "<actions>U</actions>"}
    _, (guide, driver) = played(GuideDriver(max_turns=1), TASK, words)
    assert PUZZLE.board.picture in guide and "A" not in PUZZLE.board.picture
    assert PUZZLE.board.picture not in driver and f"You are at {here}" in driver and ": b3" in driver


def test_a_guide_that_speaks_every_turn_knows_the_last_move():
    workflow = GuideDriver(text="compact", speaks="every_turn", max_turns=3)
    session, prompts = played(workflow, TASK, {"guide": "b3", "driver": "D"})
    assert [reply.agent for reply in session.replies] == ["guide", "driver"] * 3
    assert [prompt[-2:] for prompt in prompts[::2]] == ["-G", "DG", "DG"]


@pytest.mark.parametrize(("control", "knows"), [("all", True), ("part", False)])
def test_the_single_driver_knows_everything_or_only_what_is_around_it(control, knows):
    session, [prompt] = played(GuideDriver(text="compact", control=control, max_turns=1), TASK, "U")
    assert [reply.agent for reply in session.replies] == ["driver"]
    assert (PUZZLE.board.layout in prompt) == knows and prompt.endswith("--D" if not knows else "-D")


def test_a_reply_that_cannot_be_read_is_an_empty_message_or_a_turn_without_a_move():
    session, prompts = played(GuideDriver(text="compact", max_turns=2), TASK, {"guide": "zz", "driver": "?"})
    assert all(reply.malformed for reply in session.replies) and session.info == {"acc": 0.0, "turns": 2}
    assert prompts[-1].endswith("--D")


def shown(noise: float, count: int = 3_000, speaks: str = "once", control: str = "none"):
    workflow = tiny(GuideDriver, speaks=speaks, control=control)
    return list(islice(guide_driver.lessons(workflow, SMALL, noise=noise), count))


def ahead(lesson) -> str:
    """Return the character of the cell to which the driver's move leads."""
    return lesson.prompt[2 + "UDLR".index(lesson.reply)]


def test_without_noise_messages_name_the_goal_and_no_move_is_against_a_wall():
    goal = ""
    for lesson in shown(0.0, 400):
        if lesson.agent == "guide":
            goal = lesson.reply
            assert goal == lesson.prompt[16:18] and split_of(lesson.prompt[:16]) == TRAIN
        else:
            assert lesson.prompt[7:9] == goal and ahead(lesson) == "."


def test_noise_is_the_share_of_messages_and_moves_that_are_random():
    guides, drivers = ([lesson for lesson in shown(0.5) if lesson.agent == agent] for agent in ("guide", "driver"))
    right = sum(lesson.reply == lesson.prompt[16:18] for lesson in guides) / len(guides)
    assert right == pytest.approx(0.5 + 0.5 / 16, abs=0.05)
    assert 0.1 < sum(ahead(lesson) == "#" for lesson in drivers) / len(drivers) < 0.3


SEEING = GuideDriver(text="compact", map="picture", max_turns=1)


def requests_of(workflow, item, replies):
    llm = ScriptedLLM(replies)
    run(workflow, task_of(item.row(0, TEST)), llm)
    return llm.requests


def colours(picture, cell=16):
    """The colours in the middle of the cells, row by row."""
    middles = range(cell // 2, picture.height, cell)
    return [picture.getpixel((right, down)) for down in middles for right in middles]


@pytest.mark.parametrize("item", [ITEMS[0], guide_driver.shuffled(ITEMS)[0]])
def test_a_guide_that_sees_gets_the_map_as_a_picture_and_the_driver_no_picture(item):
    """In the control, the guide gets a picture of another task's board."""
    guide, driver = requests_of(SEEING, item, {"guide": "b3", "driver": "U"})
    (message,) = guide.messages
    picture, text = message["content"]
    _, seen = read(item)
    assert text == {"type": "text", "text": "G"} and picture["image"].size == (64, 64)
    assert colours(picture["image"]) == [COLOURS[letter] for letter in seen.board.picture.replace("\n", "")]
    assert isinstance(driver.messages[-1]["content"], str) and "b3D" in driver.messages[-1]["content"]


def test_lessons_have_the_pictures_of_the_workflow():
    lessons = list(islice(guide_driver.lessons(tiny(GuideDriver, map="picture"), SMALL, noise=0.0), 40))
    goals = [colours(lesson.image).index(COLOURS["G"]) for lesson in lessons if lesson.agent == "guide"]
    assert [named(goal, 4) for goal in goals] == [lesson.reply for lesson in lessons if lesson.agent == "guide"]
    assert all(lesson.image is None for lesson in lessons if lesson.agent == "driver")
