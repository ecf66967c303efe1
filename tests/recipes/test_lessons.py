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


def lengths(folder, lessons, texts, vocabulary=None):
    """The tokens of each text, by a tiny model's tokenizer of the lessons."""
    shown = [text for lesson in lessons for text in (lesson.prompt, lesson.reply)]
    tokenizer = byte_tokenizer(shown, vocabulary) if vocabulary else byte_tokenizer(shown)
    model = tiny_model(folder, hidden=16, layers=1, tokenizer=tokenizer)
    return [len(ids) for ids in AutoTokenizer.from_pretrained(model)(texts)["input_ids"]]


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
    texts = [lesson.prompt for lesson in lessons] + [lesson.reply + TURN_END for lesson in lessons]
    tokens = lengths(tmp_path, lessons, texts)
    prompts, replies = max(tokens[: len(lessons)]), max(tokens[len(lessons) :])
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
    prompts = [lesson.prompt for lesson in lessons if lesson.agent != "leader"]
    # Its last prompt and reply, of which the first three tokens are the prompt of the row.
    conversations = [lesson.prompt + lesson.reply + TURN_END for lesson in lessons if lesson.agent == "leader"]
    tokens = lengths(tmp_path, lessons, prompts + conversations, 4_096)
    assert max(tokens[: len(prompts)]) <= data.max_prompt_length
    assert data.max_response_length / 2 < max(tokens[len(prompts) :]) <= data.max_response_length


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
    prompts, replies = [lesson.prompt for lesson in lessons], [lesson.reply + TURN_END for lesson in lessons]
    tokens = lengths(tmp_path, lessons, prompts + replies, 259)
    assert tokens == [*map(len, prompts), *(len(lesson.reply) + 1 for lesson in lessons)]
    assert max(tokens[:300]) <= data.max_prompt_length and max(tokens[300:]) <= data.max_response_length
