"""The recipes of the code and the tool teams have AT-GRPO's settings; the laptop's fit a tiny model's lessons."""

from __future__ import annotations

from itertools import islice

import pytest
from recipe_configs import composed
from transformers import AutoTokenizer

from benchmarks.code_team import ARMS
from verl_mas.checks.team import agents_of, validate
from verl_mas.config.compose import compose
from verl_mas.config.run import Run
from verl_mas.gym.programs import lessons
from verl_mas.testing.tiny_model import TURN_END, byte_tokenizer, tiny_model
from verl_mas.workflow.base import resolve

# The team, and the control that acts once per turn where the team acts twice.
TEAMS = {"code": ("coder_tester", "single_coder"), "tool_math": ("reasoner_tool_user", "single_tool_user")}
POLICIES = {"shared": 1, "separate": 2, "single": 1}
VARIANTS = [(recipe, variant, size) for recipe in TEAMS for variant in POLICIES for size in ("", "_8b")]


@pytest.mark.parametrize(("recipe", "variant", "size"), VARIANTS)
def test_every_variant_has_the_papers_settings(recipe, variant, size):
    config = composed([f"+recipe={recipe}/{variant}{size}"])
    team = validate(config)
    alone = variant == "single"
    assert (team.workflow.name, len(team.policies)) == (TEAMS[recipe][alone], POLICIES[variant])
    assert resolve(team.workflow).max_turns == 4
    assert (team.branch.k, team.branch.commit, team.reward.team, team.updates_per_step) == (4, "greedy", 1, 2)
    times = 2 if alone else 1
    for name in team.policies:
        value = Run(config, team).view(name).value
        assert (value("actor.ppo_mini_batch_size"), value("actor.optim.lr")) == (64 * times, 1e-6)
        assert value("model.path") == ("Qwen/Qwen3-8B" if size else "Qwen/Qwen3-1.7B")
    assert (config.data.train_batch_size, config.trainer.total_training_steps) == (128 * times, 150)
    assert config.algorithm.adv_estimator == "at_grpo"
    assert config.data.apply_chat_template_kwargs == {"enable_thinking": False}
    data = "tool_math" if recipe == "tool_math" else "code_contests" if size else "apps"
    assert config.data.train_files == f"runs/{data}/train.parquet"


def test_the_ensemble_has_five_agents_that_branch():
    team = validate(composed(["+recipe=tool_math/ensemble_8b"]))
    assert list(agents_of(team)) == ["reasoner_0", "reasoner_1", "tool_user_0", "tool_user_1", "judge"]
    assert resolve(team.workflow).branches and team.branch.k == 4


@pytest.mark.parametrize("puzzle", ["plan_path", "sokoban", "sudoku"])
@pytest.mark.parametrize("per_role", [False, True])
def test_the_puzzles_run_with_the_papers_tool_user(puzzle, per_role):
    separate = (
        "mas.policies={tool_user: {}, planner: {}}",
        "mas.agents.tool_user.policy=tool_user",
        "mas.agents.planner.policy=planner",
        "actor_rollout_ref.rollout.gpu_memory_utilization=0.4",
    )
    config = compose(["+mas=tool_user_planner", f"+recipe={puzzle}/qwen3", *(separate if per_role else ())])
    assert len(validate(config).policies) == 1 + per_role


def test_the_laptops_arms_generate_as_many_replies_per_turn():
    def replies(*overrides: str) -> int:
        config = compose(["+platform=cpu", "+recipe=code/laptop", *overrides])
        team = validate(config)
        assert team.workflow.args["text"] == "compact" and config.actor_rollout_ref.rollout.name == "transformers"
        tasks = config.data.train_batch_size
        assert config.actor_rollout_ref.actor.ppo_mini_batch_size * team.updates_per_step == tasks
        return tasks * team.branch.k * len(agents_of(team))

    assert replies() == replies(*ARMS["single_coder"])


def test_the_lessons_fit_the_token_limits_of_the_laptop_recipe(tmp_path):
    config = compose(["+platform=cpu", "+recipe=code/laptop"])
    shown = list(islice(lessons(noise=0.6), 2_000))
    texts = (text for lesson in shown for text in (lesson.prompt, lesson.reply))
    tokenizer = AutoTokenizer.from_pretrained(
        tiny_model(tmp_path, hidden=16, layers=1, tokenizer=byte_tokenizer(texts))
    )
    prompts = tokenizer([lesson.prompt for lesson in shown])["input_ids"]
    replies = tokenizer([lesson.reply + TURN_END for lesson in shown])["input_ids"]
    assert config.data.max_prompt_length / 2 < max(map(len, prompts)) <= config.data.max_prompt_length
    assert config.data.max_response_length / 2 < max(map(len, replies)) < config.data.max_response_length
