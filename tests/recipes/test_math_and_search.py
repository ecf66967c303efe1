"""Each recipe composes from its command, and the checks of verl and the plugin accept it."""

from __future__ import annotations

import pytest
from recipe_configs import composed

from verl_mas.checks.team import agents_of, validate
from verl_mas.config.compose import compose
from verl_mas.config.merge import trained
from verl_mas.config.placement import local_policies
from verl_mas.config.run import Run

LARGER = {"math": "8b", "search": "7b"}
VARIANTS = [
    f"{recipe}/{variant}"
    for recipe, size in LARGER.items()
    for variant in ("shared", "separate", "mixed", f"shared_{size}", f"separate_{size}")
]


@pytest.mark.parametrize("variant", VARIANTS)
def test_every_variant_has_the_papers_optimiser_and_sampling(variant):
    config = composed([f"+recipe={variant}"])
    team = validate(config)
    for name in team.policies:
        value = Run(config, team).view(name).value
        assert value("actor.optim.lr") == 1e-6
        assert (value("actor.clip_ratio"), value("actor.clip_ratio_low"), value("actor.clip_ratio_high")) == (0.2,) * 3
        assert (value("actor.use_kl_loss"), value("actor.entropy_coeff")) == (False, 0.0)
    assert not config.algorithm.use_kl_in_reward and config.algorithm.adv_estimator == "agent_grpo"
    rollout = config.actor_rollout_ref.rollout
    assert (rollout.temperature, rollout.val_kwargs.temperature, rollout.val_kwargs.top_p) == (1.0, 0.6, 0.95)
    assert rollout.val_kwargs.do_sample
    assert not any(member.spec.sampling for member in agents_of(team).values())
    penalty = 0.1 if variant.startswith("math") else 0.01
    assert team.reward.local == 0.0
    assert {member.spec.format_penalty for member in agents_of(team).values()} == {penalty}


def test_math_has_the_papers_settings():
    config = composed(["+recipe=math/shared"])
    team = validate(config)
    assert (config.data.train_batch_size, config.actor_rollout_ref.rollout.n, team.updates_per_step) == (32, 8, 1)
    assert (config.data.max_prompt_length, config.data.max_response_length) == (8192, 4096)
    assert team.workflow.args == {"score": "math", "max_rounds": 2}
    assert team.agents["verifier"].chat_template_kwargs == {"enable_thinking": False}


def test_search_has_the_papers_settings():
    config = composed(["+recipe=search/shared"])
    team = validate(config)
    assert (config.data.train_batch_size, config.actor_rollout_ref.rollout.n, team.updates_per_step) == (128, 5, 5)
    assert (config.data.max_prompt_length, config.data.max_response_length) == (4096, 800)
    assert team.workflow.args["max_turns"] == 4 and team.workflow.args["topk"] == 3


@pytest.mark.parametrize("variant", [name for name in VARIANTS if name.endswith(tuple(LARGER.values()))])
def test_the_papers_larger_models_train_in_folders_of_their_own(variant):
    recipe, size = variant.rsplit("_", 1)
    larger, paper = composed([f"+recipe={variant}"]), composed([f"+recipe={recipe}"])
    assert larger.actor_rollout_ref.model.path.lower().endswith(size) and larger.trainer.n_gpus_per_node == 8
    assert larger.trainer.default_local_dir != paper.trainer.default_local_dir
    assert larger.mas == paper.mas


def test_the_mixed_search_team_has_a_larger_verifier():
    config = composed(["+recipe=search/mixed"])
    team = validate(config)
    models = {name: Run(config, team).view(name).value("model.path") for name in team.policies}
    assert models == {"verifier": "Qwen/Qwen2.5-7B", "searcher": "Qwen/Qwen2.5-3B", "answerer": "Qwen/Qwen2.5-3B"}


@pytest.mark.parametrize("recipe", ["math", "search"])
def test_the_variant_with_adapters_has_the_team_of_the_variant_with_whole_weights_on_one_engine(recipe):
    config = composed([f"+recipe={recipe}/adapters"])
    team, whole = validate(config), validate(composed([f"+recipe={recipe}/separate"]))
    assert trained(team) == trained(whole) and team.agents == whole.agents and team.reward == whole.reward
    assert local_policies(team) == ["main"]
    assert {Run(config, team).view(name).value("actor.optim.lr") for name in trained(team)} == {1e-5}


@pytest.mark.parametrize("recipe", ["math", "search"])
def test_the_laptop_variants_are_the_papers_team_on_the_cpu(recipe):
    config = compose(["+platform=cpu", f"+recipe={recipe}/laptop"])
    team, paper = validate(config), validate(composed([f"+recipe={recipe}/shared"]))
    assert team.workflow.name == paper.workflow.name and team.reward == paper.reward
    assert config.actor_rollout_ref.rollout.name == "transformers" and config.trainer.total_training_steps <= 80
