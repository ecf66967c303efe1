"""The recipes of teams that grow: who is trained is one word, and the laptop's lessons fit its limits."""

from __future__ import annotations

from functools import partial
from itertools import islice

import pytest
from recipe_configs import composed
from transformers import AutoTokenizer

from verl_mas.checks.team import agents_of, validate
from verl_mas.config.merge import trained
from verl_mas.gym.arithmetic import LEADER
from verl_mas.gym.arithmetic import lessons as arithmetic
from verl_mas.gym.lookup import lessons as lookup
from verl_mas.testing.tiny_model import TURN_END, byte_tokenizer, tiny_model

SHARED, SEPARATE = "+recipe=leader_workers/shared_4b", "+recipe=leader_workers/separate_4b"
LAPTOP = ("+platform=cpu", "+mas=sharded_lookup", "+recipe=lookup/laptop")


@pytest.mark.parametrize(
    ("recipe", "word", "agents"),
    [
        ((SHARED,), (), {"leader", "worker"}),
        ((SHARED,), ("+mas/train=workers",), {"worker"}),
        ((SEPARATE,), (), {"leader", "worker"}),
        ((SEPARATE,), ("+mas/train=leader",), {"leader"}),
        ((SEPARATE,), ("+mas/train=workers",), {"worker"}),
        (LAPTOP, ("+mas/train=leader",), {"leader"}),
    ],
)
def test_who_is_trained_is_one_word(recipe, word, agents):
    team = validate(composed([*recipe, *word]))
    assert {name for name, member in agents_of(team).items() if member.trainable} == agents
    # With an LLM per role the other one has no optimiser.
    assert set(trained(team)) == (agents if recipe == (SEPARATE,) else {"main"})


def test_the_team_has_the_settings_of_matpos_script():
    config = composed(["+recipe=leader_workers/shared"])
    rollout, actor = config.actor_rollout_ref.rollout, config.actor_rollout_ref.actor
    assert (config.data.train_batch_size, actor.ppo_mini_batch_size, rollout.n, actor.optim.lr) == (256, 256, 8, 1e-5)
    assert (config.data.max_prompt_length, config.data.max_response_length) == (3072, 37888)
    assert config.actor_rollout_ref.model.path == "Qwen/Qwen3-14B"


@pytest.mark.parametrize(
    ("recipe", "made", "vocabulary"),
    [
        (LAPTOP, partial(lookup, 4, 4, noise=0.2, worker_noise=0.3), 4_096),
        (("+platform=cpu", "+recipe=leader_workers/laptop"), partial(arithmetic, 4, 9, noise=0.25, team=LEADER), 1_024),
    ],
    ids=["lookup", "arithmetic"],
)
def test_the_lessons_fit_the_token_limits_of_the_laptop_recipe(recipe, made, vocabulary, tmp_path):
    data = composed(recipe).data
    taught = list(islice(made(), 1_000))
    texts = [text for lesson in taught for text in (lesson.prompt, lesson.reply)]
    model = tiny_model(tmp_path, hidden=16, layers=1, tokenizer=byte_tokenizer(texts, vocabulary))
    tokenizer = AutoTokenizer.from_pretrained(model)

    def longest(of: list[str]) -> int:
        return max(map(len, tokenizer(of)["input_ids"]))

    # A leader's row is its whole conversation: its last prompt and reply, of which the first three tokens are the
    # prompt of the row.
    assert longest([lesson.prompt for lesson in taught if lesson.agent != "leader"]) <= data.max_prompt_length
    conversations = [lesson.prompt + lesson.reply + TURN_END for lesson in taught if lesson.agent == "leader"]
    assert data.max_response_length / 2 < longest(conversations) <= data.max_response_length
