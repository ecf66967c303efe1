"""The lessons of the laptops' tiny models fit the token limits of their recipes, and need most of them."""

from functools import partial
from itertools import islice

import pytest
from recipe_configs import composed
from transformers import AutoTokenizer

from verl_mas.checks.run import validate
from verl_mas.config.hydra.recipe.code import programs
from verl_mas.config.hydra.recipe.guide_driver import team as guide_driver
from verl_mas.config.hydra.recipe.guide_driver.team import GuideDriver
from verl_mas.config.hydra.recipe.lookup import tables as lookup
from verl_mas.config.hydra.recipe.split_clues import clues as split_clues
from verl_mas.config.hydra.recipe.split_clues.clues import SplitClues
from verl_mas.gym.puzzles.data import lessons as puzzle_lessons
from verl_mas.gym.puzzles.data import tiny_workflow
from verl_mas.gym.warmup import tiny
from verl_mas.testing.tiny_model import TURN_END, byte_tokenizer, tiny_model


def of_puzzle(puzzle, **size):
    args = validate(composed(f"+platform=cpu +mas=planner_executor +recipe={puzzle}/laptop")).workflow.args
    return puzzle_lessons(tiny_workflow("planner_executor", args), puzzle, size, noise=0.5)


def lengths(folder, lessons, *vocabulary):
    """Return the token counts of the prompts, and the token counts of the replies, with a tokenizer that is made from
    the lessons."""
    prompts, replies = [lesson.prompt for lesson in lessons], [lesson.reply + TURN_END for lesson in lessons]
    shown = [text for lesson in lessons for text in (lesson.prompt, lesson.reply)]
    model = tiny_model(folder, hidden=16, layers=1, tokenizer=byte_tokenizer(shown, *vocabulary))
    tokenizer = AutoTokenizer.from_pretrained(model)
    return [[len(ids) for ids in tokenizer(texts)["input_ids"]] for texts in (prompts, replies)]


@pytest.mark.parametrize(
    ("arguments", "made"),
    [
        pytest.param("+recipe=code/laptop", partial(programs.lessons, noise=0.6), marks=pytest.mark.nightly),
        ("+mas=planner_executor +recipe=plan_path/laptop", partial(of_puzzle, "plan_path", size=4)),
        ("+mas=planner_executor +recipe=sokoban/laptop", partial(of_puzzle, "sokoban", size=6)),
        ("+mas=planner_executor +recipe=sudoku/laptop", partial(of_puzzle, "sudoku", size=4, blanks=6)),
    ],
    ids=["code", "plan_path", "sokoban", "sudoku"],
)
def test_prompts_and_replies_fit(arguments, made, tmp_path):
    data = composed(f"+platform=cpu {arguments}").data
    lessons = list(islice(made(), 2_000))
    prompts, replies = map(max, lengths(tmp_path, lessons))
    assert prompts <= data.max_prompt_length and replies <= data.max_response_length
    if "code" in arguments:
        assert (
            data.max_prompt_length / 2 < prompts and data.max_response_length / 2 < replies < data.max_response_length
        )
    else:
        assert replies == data.max_response_length


def test_a_leaders_row_is_its_whole_conversation(tmp_path):
    data = composed("+platform=cpu +mas=sharded_lookup +recipe=lookup/laptop").data
    lessons = list(islice(lookup.lessons(4, 4, noise=0.2, worker_noise=0.3), 1_000))
    acts = list(zip((lesson.agent for lesson in lessons), *lengths(tmp_path, lessons, 4_096), strict=True))
    assert max(prompt for agent, prompt, _ in acts if agent != "leader") <= data.max_prompt_length
    # A leader's last prompt and reply; the first three tokens are the prompt of the row.
    conversation = max(prompt + reply for agent, prompt, reply in acts if agent == "leader")
    assert data.max_response_length / 2 < conversation <= data.max_response_length


@pytest.mark.parametrize(
    ("recipe", "made"),
    [
        ("split_clues", split_clues.lessons(tiny(SplitClues, rounds=2), noise=0.5, decoys=0.5)),
        (
            "guide_driver",
            guide_driver.lessons(tiny(GuideDriver, speaks="every_turn", control="all"), guide_driver.SMALL, noise=0.5),
        ),
    ],
    ids=["split_clues", "guide_driver"],
)
def test_with_split_information_a_letter_is_a_token(recipe, made, tmp_path):
    data = composed(f"+platform=cpu +recipe={recipe}/laptop").data
    lessons = list(islice(made, 300))
    prompts, replies = lengths(tmp_path, lessons, 259)
    assert (prompts, replies) == ([len(one.prompt) for one in lessons], [len(one.reply) + 1 for one in lessons])
    assert max(prompts) <= data.max_prompt_length and max(replies) <= data.max_response_length
