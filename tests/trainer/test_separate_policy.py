"""Policies that are served on a pool of their own: engines with new weights while they serve, in real processes."""

from __future__ import annotations

import threading
import time

import pytest
import ray
import verl.trainer.ppo.v1  # noqa: F401  # imports our trainers itself
from omegaconf import OmegaConf
from transformers import AutoModelForCausalLM
from verl.checkpoint_engine.base import CheckpointEngineManager, CheckpointEngineRegistry
from verl.single_controller.base import Worker
from verl.single_controller.base.decorator import Dispatch, register
from verl.single_controller.ray import RayClassWithInitArgs, RayWorkerGroup
from verl.utils.config import omega_conf_to_dataclass

from verl_mas.engines.ray_weights import BACKEND
from verl_mas.trainer.placing import place
from verl_mas.trainer.pools import _pool
from verl_mas.trainer.separate_policy import Standalone, send_apart

SCALES = {"a": 1.5, "b": 0.5}


class Trainer(Worker):
    """In place of a policy's training process."""

    def __init__(self, path, scale):
        super().__init__()
        import verl_mas.engines.ray_weights  # noqa: F401

        self.weights = AutoModelForCausalLM.from_pretrained(path).state_dict()
        self.scale = scale
        self.engine = CheckpointEngineRegistry.new(BACKEND, bucket_size=1 << 16, is_master=True)

    @register(dispatch_mode=Dispatch.ONE_TO_ALL, blocking=False)
    async def update_weights(self, global_steps=None, mode="auto"):
        scaled = ((name, tensor * self.scale**global_steps) for name, tensor in self.weights.items())
        return await self.engine.send_weights(scaled, global_steps=global_steps) or {}

    @register(dispatch_mode=Dispatch.DP_COMPUTE, blocking=False)
    def execute_checkpoint_engine(self, method, *args, **kwargs):
        return getattr(self.engine, method)(*args, **kwargs)


def view(policy, path):
    rollout = {
        "_target_": "verl.workers.config.RolloutConfig",
        "name": "transformers",
        **{f"{kind}_parallel_size": 1 for kind in ("tensor_model", "data", "pipeline_model")},
        "nnodes": 1,
        "n_gpus_per_node": 1,
        "dtype": "float32",
        "prompt_length": 32,
        "response_length": 64,
        "custom": {"policy": policy},
        "checkpoint_engine": {
            "_target_": "verl.workers.config.CheckpointEngineConfig",
            "backend": BACKEND,
            "update_weights_bucket_megabytes": 1,
            "custom_backend_module": None,
        },
        "disaggregation": {"enabled": False},
        "prometheus": {"enable": False},
        "disable_log_stats": True,
    }
    model = {"_target_": "verl.workers.config.HFModelConfig", "path": path}
    return OmegaConf.create({"actor_rollout_ref": {"rollout": rollout, "model": model}})


class Served:
    def __init__(self, name, path, trains, serves):
        config = view(name, path)
        send_apart(config, name)
        made = RayClassWithInitArgs(cls=ray.remote(Trainer), path=path, scale=SCALES[name])
        group = RayWorkerGroup(resource_pool=trains, ray_cls_with_init=made, name_prefix=f"trainer_{name}")
        self.engines = Standalone.create(config=config, rollout_resource_pool=serves)
        self.manager = CheckpointEngineManager(
            omega_conf_to_dataclass(config.actor_rollout_ref.rollout.checkpoint_engine),
            group,
            self.engines.get_replicas(),
        )

    def ask(self, **params):
        return self.engines.server_handles[0].generate.remote(
            prompt_ids=[5, 6], sampling_params={"temperature": 0, "ignore_eos": True, **params}, request_id="r"
        )


@pytest.mark.e2e
def test_two_policies_on_one_serving_pool_get_each_its_own_weights_while_the_other_serves(
    tiny_model_path, monkeypatch, warm_ray
):
    pools = [_pool(name, [1], cpus) for name, cpus in (("left", 2), ("right", 2), ("serve", 3))]
    place(pools)
    path = str(tiny_model_path)
    both = {name: Served(name, path, trains, pools[2]) for name, trains in zip(SCALES, pools, strict=False)}
    first = {name: ray.get(one.ask()) for name, one in both.items()}
    assert first["a"].log_probs == first["b"].log_probs
    # Two transfers at the same time, into engines on one pool.
    threads = [threading.Thread(target=one.manager.update_weights, args=(1,)) for one in both.values()]
    [thread.start() for thread in threads]
    [thread.join(120) for thread in threads]
    for name, one in both.items():
        [replica] = one.engines.get_replicas()
        assert ray.get(one.ask()).extra_fields["global_steps"] == 1
        assert fingerprint(replica.servers[0]) == expected(path, SCALES[name])
    # The one policy's engine generates on while the other's gets weights.
    long = both["a"].ask(max_tokens=4000)
    time.sleep(0.1)
    both["b"].manager.update_weights(2)
    reply = ray.get(long)
    assert reply.stop_reason != "aborted" and reply.extra_fields["max_global_steps"] == 1
    assert fingerprint(both["a"].engines.get_replicas()[0].servers[0]) == expected(path, SCALES["a"])
    assert fingerprint(both["b"].engines.get_replicas()[0].servers[0]) == expected(path, SCALES["b"] ** 2)


def fingerprint(server):
    return ray.get(server.__ray_call__.remote(lambda self: _sums(self.batcher.model.state_dict())))


def expected(path, scale):
    weights = AutoModelForCausalLM.from_pretrained(path).state_dict()
    return _sums({name: tensor * scale for name, tensor in weights.items()})


def _sums(weights):
    return {name: float(tensor.double().abs().sum()) for name, tensor in sorted(weights.items())}


@pytest.fixture
def tiny_model_path(tmp_path):
    from verl_mas.warmup.tiny_model import tiny_model

    return tiny_model(tmp_path, parameters=100_000)


@pytest.fixture
def warm_ray(monkeypatch):
    monkeypatch.setenv("VERL_PLATFORM", "cpu")
    ray.init(num_cpus=16, num_gpus=3, include_dashboard=False, log_to_driver=True)
    yield
    ray.shutdown()
