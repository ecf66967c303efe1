"""The recipes of split clues and of guide and driver take the variants of their page, and their demonstrations fit."""

from __future__ import annotations

from itertools import islice

import pytest
from transformers import AutoTokenizer

from verl_mas.checks.team import validate
from verl_mas.config.compose import compose
from verl_mas.gym import guide_driver, split_clues
from verl_mas.gym.guide_driver import SMALL
from verl_mas.testing.tiny_model import TURN_END, byte_tokenizer, tiny_model
from verl_mas.workflow.base import agents_of

BRANCHES = ("algorithm.adv_estimator=at_grpo", "mas.branch.k=8", "actor_rollout_ref.rollout.n=1")
PER_ROLE = "mas.policies={{{0}: {{}}, {1}: {{}}}} mas.agents.{0}.policy={0} mas.agents.{1}.policy={1}"


@pytest.mark.parametrize(
    ("recipe", "overrides", "agents"),
    [
        ("split_clues", PER_ROLE.format("sender", "receiver"), ["sender", "receiver"]),
        ("split_clues", "++mas.workflow.args.parts=3", ["sender_0", "sender_1", "receiver"]),
        ("split_clues", "++mas.workflow.args.control=all", ["sender", "receiver"]),
        ("guide_driver", PER_ROLE.format("guide", "driver"), ["guide", "driver"]),
        ("guide_driver", "++mas.workflow.args.control=part", ["guide", "driver"]),
    ],
)
def test_the_recipe_takes_the_variants_of_its_page(recipe, overrides, agents):
    given = overrides.replace(": {}", ":{}").replace(", ", ",").split()
    mas = validate(compose(("+platform=cpu", f"+recipe={recipe}/laptop", *given)))
    assert list(agents_of(mas)) == agents and mas.workflow.args["text"] == "compact"


@pytest.mark.parametrize("recipe", ["split_clues", "guide_driver"])
def test_candidates_can_be_played_on(recipe):
    played = (*BRANCHES, "++mas.workflow.args.continuations=1", "++mas.advantage.baseline=leave_one_out")
    mas = validate(compose(("+platform=cpu", f"+recipe={recipe}/laptop", *played, "++mas.advantage.scale=none")))
    assert mas.workflow.args["continuations"] == 1 and mas.branch.k == 8


def lessons_of(recipe):
    if recipe == "split_clues":
        return split_clues.lessons(split_clues.tiny_workflow(parts=2, rounds=2), noise=0.5, decoys=0.5)
    return guide_driver.lessons(guide_driver.tiny_workflow("every_turn", "all"), SMALL, noise=0.5)


@pytest.mark.parametrize("recipe", ["split_clues", "guide_driver"])
def test_the_longest_demonstrations_fit_and_a_letter_is_a_token(recipe, tmp_path):
    config = compose(("+platform=cpu", f"+recipe={recipe}/laptop"))
    shown = list(islice(lessons_of(recipe), 300))
    tokenizer = AutoTokenizer.from_pretrained(
        tiny_model(tmp_path, hidden=16, layers=1, tokenizer=byte_tokenizer([lesson.prompt for lesson in shown], 259))
    )
    for lesson in shown:
        prompt, reply = tokenizer(lesson.prompt)["input_ids"], tokenizer(lesson.reply + TURN_END)["input_ids"]
        assert (len(prompt), len(reply)) == (len(lesson.prompt), len(lesson.reply) + 1)
        assert len(prompt) <= config.data.max_prompt_length and len(reply) <= config.data.max_response_length
