"""The puzzle recipes compose from their commands, and the checks of verl and the plugin accept them."""

from __future__ import annotations

from itertools import islice

import pytest
from transformers import AutoTokenizer

from verl_mas.checks.team import validate
from verl_mas.config.adapters import adapters
from verl_mas.config.compose import compose
from verl_mas.config.merge import trained
from verl_mas.gym.puzzles.data import lessons, tiny_workflow
from verl_mas.testing.tiny_model import TURN_END, byte_tokenizer, tiny_model

PER_ROLE = (
    "mas.policies={planner: {}, executor: {}}",
    "mas.agents.planner.policy=planner",
    "mas.agents.executor.policy=executor",
)


def composed(*overrides: str):
    return compose(overrides)


@pytest.mark.parametrize("puzzle", ["plan_path", "sokoban", "sudoku"])
@pytest.mark.parametrize(
    ("arguments", "policies"), [("+mas=planner_executor +recipe={}/qwen3", 1), ("+recipe={}/qwen3_roles", 2)]
)
def test_the_gpu_recipes_have_the_papers_settings(puzzle, arguments, policies):
    config = composed(*arguments.format(puzzle).split())
    team = validate(config)
    assert (team.workflow.name, len(team.policies)) == ("planner_executor", policies)
    assert team.workflow.args["moves"] == (16 if puzzle == "sudoku" else 8)
    actor = config.actor_rollout_ref.actor
    assert (config.data.train_batch_size, actor.ppo_mini_batch_size, actor.optim.lr) == (128, 64, 1e-6)
    assert (team.branch.k, team.branch.commit, team.workflow.args["max_turns"], team.reward.team) == (4, "greedy", 4, 1)
    assert config.data.train_files.startswith(f"runs/{puzzle}")
    assert config.data.apply_chat_template_kwargs == {"enable_thinking": False}
    assert config.trainer.default_local_dir.startswith(f"runs/{puzzle}") and config.trainer.project_name == puzzle


@pytest.mark.parametrize(
    "overrides",
    [
        ("+mas=planner_executor",),
        ("+mas=planner_executor", *PER_ROLE),
        ("+mas=planner_executor", "+mas.workflow.args.reward=sparse"),
        ("+mas=single_player",),
        (
            "+mas=planner_executor",
            "mas.branch.k=1",
            "actor_rollout_ref.rollout.n=8",
            "algorithm.adv_estimator=agent_grpo",
        ),
    ],
)
def test_the_laptop_recipe_takes_the_variants_of_its_page(overrides):
    config = composed("+platform=cpu", overrides[0], "+recipe=plan_path/laptop", *overrides[1:])
    assert validate(config).workflow.args["text"] == "compact"


@pytest.mark.parametrize(
    ("command", "policies"),
    [
        (("+recipe=plan_path/qwen3_adapters",), ["planner", "executor"]),
        (("+platform=cpu", "+recipe=plan_path/laptop_adapters"), ["planner", "executor"]),
        (("+platform=cpu", "+recipe=guide_driver/laptop_adapters"), ["guide", "driver"]),
    ],
)
def test_the_variants_with_adapters_train_one_per_role_on_one_base(command, policies):
    team = validate(composed(*command))
    assert trained(team) == policies and adapters(team, "main") == policies
    assert {agent: spec.policy for agent, spec in team.agents.items()} == {name: name for name in policies}


@pytest.mark.parametrize(
    ("puzzle", "size"), [("plan_path", {"size": 4}), ("sokoban", {"size": 6}), ("sudoku", {"size": 4, "blanks": 6})]
)
def test_the_lessons_fit_the_token_limits_of_the_laptop_recipe(puzzle, size, tmp_path):
    config = composed("+platform=cpu", "+mas=planner_executor", f"+recipe={puzzle}/laptop")
    workflow = tiny_workflow("planner_executor", validate(config).workflow.args)
    shown = list(islice(lessons(workflow, puzzle, size, noise=0.5), 2000))
    texts = (text for lesson in shown for text in (lesson.prompt, lesson.reply))
    tokenizer = AutoTokenizer.from_pretrained(
        tiny_model(tmp_path, hidden=16, layers=1, tokenizer=byte_tokenizer(texts))
    )
    prompts = tokenizer([lesson.prompt for lesson in shown])["input_ids"]
    replies = tokenizer([lesson.reply + TURN_END for lesson in shown])["input_ids"]
    assert max(map(len, prompts)) <= config.data.max_prompt_length
    assert max(map(len, replies)) == config.data.max_response_length


@pytest.mark.parametrize("puzzle", ["plan_path", "sokoban", "sudoku"])
def test_laptop_recipes_have_separate_folders(puzzle):
    config = composed("+platform=cpu", "+mas=planner_executor", f"+recipe={puzzle}/laptop")
    assert config.trainer.project_name == puzzle
    paths = (config.data.train_files, config.data.val_files, config.actor_rollout_ref.model.path)
    assert all(path.startswith(f"runs/{puzzle}") for path in (*paths, config.trainer.default_local_dir))


def test_the_gpu_recipe_accepts_the_papers_workflow_and_the_single_agent():
    form = composed("+mas=tool_user_planner", "+recipe=plan_path/qwen3")
    assert list(form.mas.agents) == ["tool_user", "planner"]
    twice = ("data.train_batch_size=256", "actor_rollout_ref.actor.ppo_mini_batch_size=128")
    validate(composed("+mas=single_player", "+recipe=plan_path/qwen3", *twice))
