"""The choice that `mas.pools.<pool>.serving=auto` makes."""

import pytest
from omegaconf import OmegaConf

from verl_mas.config import load
from verl_mas.config.placement import time_sliced
from verl_mas.config.run import Run
from verl_mas.engines.serving import resolve_serving, serving


def config(device="cuda", **rollout):
    sizes = {f"{kind}_parallel_size": 1 for kind in ("tensor_model", "data", "pipeline_model")}
    section = {**sizes, "name": "vllm", "gpu_memory_utilization": 0.5, "free_cache_engine": True, **rollout}
    return OmegaConf.create({"trainer": {"device": device}, "actor_rollout_ref": {"rollout": section}})


def way(policies, pools=None, **settings):
    team = load({"policies": policies, "pools": pools or {}})
    made = resolve_serving(Run(config(**settings), team)).mas
    assert time_sliced(made, "shared") == (made.pools["shared"].serving == "phases")
    return made.pools["shared"].serving


@pytest.mark.parametrize(
    ("shares", "way", "says"),
    [
        ([(0.4, 1, True), (0.45, 1, True)], "together", "add up to 0.85, at most 0.85"),
        ([(0.4, 1, False), (0.4, 1, False)], "together", "0.8"),  # engines that fit need not sleep
        ([(0.5, 1, True), (0.5, 1, True)], "phases", "add up to 1, above 0.85"),
        ([(0.3, 2, True), (0.3, 1, True)], "phases", "replicas of 2 GPUs"),
        ([(0.3, 2, True), (0.3, 2, False)], "together", "free_cache_engine=False"),
    ],
)
def test_engines_are_together_where_they_fit_and_else_in_phases(shares, way, says):
    keys = ("gpu_memory_utilization", "tensor_model_parallel_size", "free_cache_engine")
    overrides = [{"rollout": dict(zip(keys, share, strict=True))} for share in shares]
    mas = load({"policies": {f"p{number}": {"overrides": each} for number, each in enumerate(overrides)}})
    choice = serving(Run(config(), mas), "shared")
    assert choice.way == way and says in choice.reason


REMOTE = {"remote": {"base_url": "http://x", "model": "m"}}
SMALL = {"overrides": {"rollout": {"gpu_memory_utilization": 0.3}}}
FROZEN = {"trainable": False}


def test_verls_defaults_for_two_policies_do_not_fit_together_and_one_that_is_remote_takes_nothing():
    for second, expected in (
        ({}, "phases"), (SMALL, "together"), (FROZEN, "phases"), (REMOTE, "together"), ({"pool": "other"}, "together"),
    ):  # fmt: skip
        assert way({"a": {}, "b": second}, {"other": {}}) == expected


def test_what_the_user_sets_is_kept():
    for wanted in ("together", "phases"):
        assert way({"a": SMALL, "b": {}}, {"shared": {"serving": wanted}}) == wanted
    mas = load({"policies": {"a": {}, "b": {}}, "pools": {"shared": {"serving": "phases"}}})
    assert serving(Run(config(), mas), "shared").reason == "mas.pools.shared.serving"


@pytest.mark.parametrize("settings", [{"device": "cpu"}, {"name": "transformers", "free_cache_engine": False}])
def test_engines_that_reserve_no_gpu_memory_are_together(settings):
    assert way({"a": {}, "b": {}}, **settings) == "together"


def test_a_team_whose_serving_is_not_settled_is_not_read_as_together():
    with pytest.raises(AssertionError, match="resolve_serving"):
        time_sliced(load({"policies": {"a": {}, "b": {}}}), "shared")
