"""Variants of a recipe: their common settings, and their differences in trained agents and policies."""

import pytest
from recipe_configs import accepted, composed

from benchmarks.code_team import ARMS
from verl_mas.checks.run import validate
from verl_mas.config.adapters import adapters
from verl_mas.config.merge import snapshots
from verl_mas.config.placement import local_policies
from verl_mas.config.run import Run, load
from verl_mas.workflow.base import agents_of


@pytest.mark.parametrize("variant", ["math/{}_8b", "search/{}_7b"])
@pytest.mark.parametrize("policies", ["shared", "separate"])
def test_the_papers_larger_models_train_in_folders_of_their_own(variant, policies):
    name = variant.format(policies)
    larger, paper = composed(f"+recipe={name}"), composed(f"+recipe={name.rsplit('_', 1)[0]}")
    assert larger.actor_rollout_ref.model.path.lower().endswith(name[-2:]) and larger.trainer.n_gpus_per_node == 8
    assert larger.trainer.default_local_dir != paper.trainer.default_local_dir and larger.mas == paper.mas


@pytest.mark.parametrize("recipe", ["math", "search"])
def test_the_variant_with_adapters_has_the_team_of_the_variant_with_whole_weights_on_one_engine(recipe):
    run, whole = accepted(f"+recipe={recipe}/adapters"), accepted(f"+recipe={recipe}/separate").mas
    team = run.mas
    assert run.trained == Run(None, whole).trained and team.agents == whole.agents and team.reward == whole.reward
    assert local_policies(team) == ["main"]
    assert {run.view(name).value("actor.optim.lr") for name in run.trained} == {1e-5}


@pytest.mark.parametrize("recipe", ["math", "search"])
def test_the_laptop_variants_are_the_papers_team_on_the_cpu(recipe):
    config = composed(f"+platform=cpu +recipe={recipe}/laptop")
    laptop, gpu = validate(config), accepted(f"+recipe={recipe}/shared").mas
    assert laptop.reward == gpu.reward and laptop.workflow.name == gpu.workflow.name
    assert config.trainer.total_training_steps <= 80


def test_the_laptops_arms_of_the_code_team_generate_as_many_replies_per_turn():
    def replies(*overrides: str) -> int:
        config = composed(["+platform=cpu", "+recipe=code/laptop", *overrides])
        team = validate(config)
        tasks = config.data.train_batch_size
        assert config.actor_rollout_ref.actor.ppo_mini_batch_size * team.updates_per_step == tasks
        return tasks * team.branch.k * len(agents_of(team))

    assert replies() == replies(*ARMS["single_coder"])


def test_the_variant_with_adapters_trains_one_per_role_on_one_base():
    team, policies = accepted("+recipe=plan_path/qwen3_adapters").mas, ["planner", "executor"]
    assert Run(None, team).trained == policies and adapters(team, "main") == policies
    assert {agent: spec.policy for agent, spec in team.agents.items()} == {name: name for name in policies}


def test_the_policies_of_the_shapes_of_teams():
    pioneer, observer = agents_of(accepted("+recipe=cory/qwen3").mas).values()
    assert (pioneer.policies, observer.policies, pioneer.every) == (("llm1", "llm2"), ("llm2", "llm1"), 5)
    for recipe, policies in {"debate/qwen3_each": {"llm0", "llm1", "llm2"}, "malt/llama": None}.items():
        team = accepted(f"+recipe={recipe}").mas
        assert {agent.spec.policy for agent in agents_of(team).values()} == (policies or set(team.policies))


SEPARATE, LOOKUP = "+recipe=leader_workers/separate_4b", "+platform=cpu +mas=sharded_lookup +recipe=lookup/laptop"


@pytest.mark.parametrize(
    ("command", "agents"),
    [
        ("+recipe=leader_workers/shared_4b", {"leader", "worker"}),
        ("+recipe=leader_workers/shared_4b +mas/train=workers", {"worker"}),
        (SEPARATE, {"leader", "worker"}),
        (f"{SEPARATE} +mas/train=leader", {"leader"}),
        (f"{SEPARATE} +mas/train=workers", {"worker"}),
        (f"{LOOKUP} +mas/train=leader", {"leader"}),
    ],
)
def test_who_is_trained_is_one_word(command, agents):
    team = validate(composed(command))
    assert {name for name, agent in agents_of(team).items() if agent.trainable} == agents
    # If each role has its own LLM, the LLM of the role that is not trained has no optimiser.
    assert set(Run(None, team).trained) == (agents if command.startswith(SEPARATE) else {"main"})


@pytest.mark.parametrize(
    ("command", "past"),
    [
        ("+recipe=self_play/laptop", ["past"]),
        ("+recipe=self_play/laptop_kuhn", ["past"]),
        ("+recipe=self_play/qwen3", ["past"]),
        ("+recipe=self_play/laptop mas.workflow.args.opponent=self ~mas.policies.past ~mas.agents.opponent", []),
        ("+recipe=self_play/qwen3_self", []),
    ],
)
def test_the_learner_is_in_both_seats_and_its_opponent_is_a_snapshot(command, past):
    team = load(composed(command).mas)
    assert (Run(None, team).trained, snapshots(team)) == (["main"], past)
    learns = {name: agent.trainable for name, agent in agents_of(team).items()}
    assert learns == {"player_0": True, "player_1": True} | ({"opponent": False} if past else {})
