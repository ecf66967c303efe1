"""Properties that all recipes for GPUs have in common, tested on each of their files."""

from pathlib import Path

import pytest
from omegaconf import DictConfig, OmegaConf
from recipe_configs import accepted, composed

from verl_mas.checks import run as checks
from verl_mas.checks.run import examine_command, validate
from verl_mas.config.placement import local_policies
from verl_mas.config.run import Run
from verl_mas.errors import ConfigError
from verl_mas.planning.hardware import parse_gpus
from verl_mas.planning.model_folder import has_own_head

RECIPES = Path(__file__).parents[2] / "recipes"
FUSED = {False: {("fsdp2", True)}, True: {("fsdp2", False), ("fsdp", True)}}
# Files that only other files include.
PARTS = {"common", "roles"}
RUNS = sorted(
    str(file.relative_to(RECIPES).with_suffix(""))
    for file in RECIPES.glob("*/*.yaml")
    if file.stem not in PARTS and not file.stem.startswith("laptop")
)


def command_of(recipe: str) -> str:
    """The arguments in the file's first lines."""
    (command,) = [line for line in (RECIPES / f"{recipe}.yaml").read_text().splitlines() if "main_ppo" in line]
    return command.partition("main_ppo ")[2]


def config_of(recipe: str) -> DictConfig:
    return composed(command_of(recipe))


@pytest.mark.parametrize("recipe", RUNS)
def test_a_gpu_recipe_is_accepted_and_bounds_memory_evaluations_and_disk(recipe, monkeypatch):
    monkeypatch.setattr(checks, "compose", composed)
    report = examine_command(command_of(recipe).split(), parse_gpus("2x8x80"))
    assert report.accepted, report.problems
    run = accepted(command_of(recipe))
    config = run.config
    row = config.data.max_prompt_length + config.data.max_response_length
    for name in run.mas.policies:
        section = run.view(name).config.actor_rollout_ref
        rollout, actor, model = section.rollout, section.actor, section.model
        assert (rollout.name, rollout.tensor_model_parallel_size, rollout.max_model_len) == ("vllm", 1, row)
        assert rollout.calculate_log_probs and rollout.log_prob_use_dynamic_bsz and actor.use_dynamic_bsz
        assert min(rollout.log_prob_max_token_len_per_gpu, actor.ppo_max_token_len_per_gpu) >= row
        assert model.use_remove_padding and model.enable_gradient_checkpointing
        # With FSDP2, fused kernels cannot read an output layer that has its own weights.
        assert (actor.strategy, model.use_fused_kernels) in FUSED[has_own_head(model)]
        assert actor.fsdp_config.optimizer_offload
        # Recipes do not set the attention: it depends on the installed packages.
        assert not model.override_config
    assert (config.data.val_batch_size, config.trainer.max_actor_ckpt_to_keep) == (512, 2)
    engines = [run.view(name).value("rollout.gpu_memory_utilization") for name in local_policies(run.mas)]
    assert sum(engines) <= 0.85


def test_no_two_gpu_recipes_write_into_one_folder():
    folders = [config_of(recipe).trainer.default_local_dir for recipe in RUNS]
    assert len(set(folders)) == len(RUNS) >= 16


# CI runs these recipes, one of each kind, and the nightly job runs all recipes.
WITH_SGLANG = {"math/adapters", "math/separate", "search/shared"}
assert set(RUNS) >= WITH_SGLANG


@pytest.mark.parametrize(
    "recipe", [pytest.param(run, marks=[] if run in WITH_SGLANG else pytest.mark.nightly) for run in RUNS]
)
def test_sglang_is_one_word_away_but_of_adapters_which_it_takes_from_0_5_17_on(recipe):
    config = config_of(recipe)
    OmegaConf.update(config, "actor_rollout_ref.rollout.name", "sglang")
    if "adapter_of" in str(config.mas.get("policies")):
        with pytest.raises(ConfigError, match=r"from 0\.5\.17 on"):
            validate(config)
        return
    run = Run(config, validate(config))
    assert {run.view(name).engine for name in run.mas.policies} == {"sglang"}
