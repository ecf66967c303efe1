"""`+mas/mode=<mode>` switches the mode of any recipe."""

from pathlib import Path

import pytest
import yaml
from omegaconf import OmegaConf

import verl_mas.config
from verl_mas.config.compose import compose
from verl_mas.config.merge import leaves
from verl_mas.config.modes import MODES, Staleness, mode_of, staleness_of
from verl_mas.config.run import Run

RECIPE = "+recipe=math/shared"
FOLDER = Path(verl_mas.config.__file__).parent / "hydra" / "mas" / "mode"


@pytest.mark.parametrize("word", [mode.verl for mode in MODES.values()])
def test_one_word_after_the_recipe_switches_its_mode(word):
    config = compose([RECIPE, f"+mas/mode={word}"])
    mode = mode_of(config)
    assert mode is not None and mode.verl == word
    assert staleness_of(config) == (Staleness(1, 2, "wait") if mode.asynchronous else None)
    found = config.algorithm.rollout_correction
    assert (found.rollout_is, found.rollout_is_threshold) == ("token" if mode.asynchronous else None, 2.0)
    assert config.actor_rollout_ref.rollout.calculate_log_probs


def test_stale_rows_of_a_recipe_with_bypass_are_corrected_token_by_token():
    settings = ["+mas=planner_executor", "+recipe=plan_path/laptop", "+mas/mode=colocate_async"]
    found = compose(settings).algorithm.rollout_correction
    assert (found.bypass_mode, found.rollout_is) == (False, "token")


def test_engines_apart_get_weights_as_the_device_allows():
    config = compose([RECIPE, "+mas/mode=separate_async"])
    for device, name in (("cpu", "ray"), ("cuda", "nccl"), ("npu", "nccl")):
        config.trainer.device = device
        view = Run.of(config).view("main").config
        OmegaConf.resolve(view)
        assert view.actor_rollout_ref.rollout.checkpoint_engine.backend == name


def test_sync_sets_back_whatever_another_mode_has_set_except_for_the_correction():
    def set_by(mode):
        return {path for path, _ in leaves(yaml.safe_load((FOLDER / f"{mode}.yaml").read_text()))}

    for mode in ("colocate_async", "separate_async"):
        own = {path for path in set_by(mode) - set_by("sync") if path[:3] != ("trainer", "v1", mode)}
        assert {path[:2] for path in own} <= {("algorithm", "rollout_correction"), ("actor_rollout_ref", "rollout")}
