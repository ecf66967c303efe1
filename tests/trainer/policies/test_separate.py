"""Policies that are trained on one pool and served on another, without their processes."""

from types import SimpleNamespace

import pytest
from omegaconf import OmegaConf

from verl_mas.config.run import Run
from verl_mas.engines.serving import resolve_serving
from verl_mas.trainer import made_policies
from verl_mas.trainer.policies.separate import SeparatePolicy, send_apart


@pytest.mark.parametrize(
    ("backend", "module", "given"),
    [
        ("ray", "verl_mas.engines.ray_weights", {}),
        ("nccl", None, {"nccl": {"rebuild_group": True, "group_name": "verl_mas_a"}}),
        ("nixl", None, {}),
    ],
)
def test_a_policy_has_a_transfer_of_its_own(backend, module, given):
    kwargs = {"nccl": {"rebuild_group": True}} if given else {}
    engine = {"backend": backend, "custom_backend_module": None, "engine_kwargs": kwargs}
    config = OmegaConf.create({"actor_rollout_ref": {"rollout": {"checkpoint_engine": engine}}})
    send_apart(config, "a")
    engine = config.actor_rollout_ref.rollout.checkpoint_engine
    assert engine.custom_backend_module == module and engine.engine_kwargs == given


@pytest.mark.parametrize(("offloads", "log"), [(True, ["send 3", "move cpu"]), (False, ["send 3"])])
def test_parameters_that_wait_in_host_memory_are_moved_back_after_a_transfer(offloads, log):
    policy, done = object.__new__(SeparatePolicy), []
    actor = {"strategy": "fsdp2", "fsdp_config": {"param_offload": offloads}}
    policy.config = OmegaConf.create({"actor_rollout_ref": {"actor": actor}})
    policy.checkpoint_manager = SimpleNamespace(update_weights=lambda step: done.append(f"send {step}"))
    policy.actor_rollout_wg = SimpleNamespace(to=lambda device, **what: done.append(f"move {device}"))
    policy.wake(3)
    policy.sleep()
    assert done == log


def test_verl_finds_the_checkpoint_engine_beside_the_engines_of_a_frozen_policy(make, monkeypatch):
    """verl makes a checkpoint engine for frozen policies, too."""
    monkeypatch.setattr(made_policies, "FrozenPolicy", lambda name, view, pool: view.actor_rollout_ref.rollout)
    config = make(
        mas__policies={"main": {}, "guide": {"trainable": False}},
        actor_rollout_ref__rollout__checkpoint_engine__backend="ray",
    )
    run = resolve_serving(Run.of(config))
    rollout = made_policies.make("guide", run, SimpleNamespace(of=lambda name: None), 1)
    assert rollout.checkpoint_engine.custom_backend_module == "verl_mas.engines.ray_weights"
