"""The recipes of debate, MALT and CORY compose, pass the checks, and have the settings that their pages name."""

from __future__ import annotations

import pytest
from recipe_configs import composed

from verl_mas.checks.team import validate
from verl_mas.config.compose import compose
from verl_mas.config.run import Run
from verl_mas.workflow.base import agents_of


@pytest.mark.parametrize(
    "variant", ["cory/qwen3", "debate/qwen3", "debate/qwen3_each", "malt/llama", "malt/llama_shared"]
)
def test_every_variant_passes_the_checks_with_the_optimiser_of_its_page(variant):
    config = composed([f"+recipe={variant}"])
    team = validate(config)
    for name in team.policies:
        assert Run(config, team).view(name).value("actor.optim.lr") == 1e-6
    assert (config.data.train_batch_size, team.updates_per_step, config.trainer.total_training_steps) == (32, 1, 100)
    assert config.trainer.default_local_dir == f"runs/{variant}"


def test_cory_exchanges_its_two_copies_every_five_steps():
    config = composed(["+recipe=cory/qwen3"])
    pioneer, observer = agents_of(validate(config)).values()
    assert (pioneer.policies, observer.policies, pioneer.every) == (("llm1", "llm2"), ("llm2", "llm1"), 5)
    assert (config.actor_rollout_ref.actor.use_kl_loss, config.actor_rollout_ref.actor.kl_loss_coef) == (True, 0.01)


def test_equal_debaters_are_one_group_and_debaters_of_their_own_are_not():
    equal, own = (validate(composed([f"+recipe=debate/{name}"])) for name in ("qwen3", "qwen3_each"))
    assert (equal.advantage["by"], own.advantage["by"]) == ("role", "agent")
    assert {member.spec.policy for member in agents_of(own).values()} == {"llm0", "llm1", "llm2"}
    assert equal.workflow == own.workflow
    assert (equal.workflow.args["debaters"], equal.workflow.args["rounds"]) == (3, 2)


def test_malt_samples_three_candidates_of_every_act():
    team = validate(composed(["+recipe=malt/llama"]))
    assert team.branch.k == 3 and {member.spec.policy for member in agents_of(team).values()} == set(team.policies)


@pytest.mark.parametrize("recipe", ["cory", "debate", "malt"])
def test_the_laptop_variants_are_the_same_teams_on_the_cpu(recipe):
    config = compose(["+platform=cpu", f"+recipe={recipe}/laptop"])
    team, paper = validate(config), validate(composed([f"+recipe={recipe}/{'llama' if recipe == 'malt' else 'qwen3'}"]))
    assert (team.workflow.name, team.swap, team.branch) == (paper.workflow.name, paper.swap, paper.branch)
    assert config.actor_rollout_ref.rollout.name == "transformers" and config.trainer.total_training_steps <= 40
