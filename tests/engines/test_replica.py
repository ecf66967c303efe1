import asyncio
import os
import random
from types import SimpleNamespace

import pytest
import ray
from omegaconf import OmegaConf
from ray.exceptions import ActorDiedError
from transformers import AutoModelForCausalLM
from verl.plugin.platform.platform_cuda import PlatformCUDA
from verl.workers.rollout.base import get_rollout_class
from verl.workers.rollout.replica import get_rollout_replica_class

from verl_mas.engines.transformers import ENGINE
from verl_mas.engines.transformers import replica as replica_module

pytestmark = pytest.mark.e2e
OUTSTANDING = 1200


async def test_two_replicas_serve_take_weights_and_are_named_when_they_fail(ray_here, model_path, monkeypatch):
    class Worker:
        """Stand-in for a training worker, on whose node the server starts."""

    settings = {"name": ENGINE, "tensor_model_parallel_size": 1, "dtype": "float32"}
    settings |= {"prompt_length": 32, "response_length": 16, "custom": {"policy": "solver", "rank_offset": 6}}
    config = OmegaConf.create({"_target_": "verl.workers.config.RolloutConfig", **settings})
    model_config = OmegaConf.create({"_target_": "verl.workers.config.HFModelConfig", "path": str(model_path)})
    monkeypatch.setattr(replica_module, "get_platform", GpusThatAreCpus)
    shares = [ray.remote(Worker).options(num_cpus=0, num_gpus=1).remote() for _ in range(2)]
    workers = SimpleNamespace(workers=shares)
    replicas = [get_rollout_replica_class(ENGINE)(rank, config, model_config, gpus_per_node=1) for rank in range(2)]
    await asyncio.gather(*[replica.init_hybrid(workers) for replica in replicas])
    assert [r.server_address for r in replicas] == [f"transformers_server_solver_{rank}" for rank in (6, 7)]
    # The random numbers differ from those of another policy's replicas.
    drawn = [await r.server_handle.__ray_call__.remote(lambda one: one.batcher.seeds.random()) for r in replicas]
    assert drawn == [random.Random(42 + rank).random() for rank in (6, 7)]
    assert [await gpus_seen_by(r.server_handle) for r in replicas] == [await gpus_seen_by(worker) for worker in shares]

    monkeypatch.setenv("RANK", "1")
    adapter = get_rollout_class(ENGINE)(config=config, model_config=model_config, device_mesh=None)
    before = [await ask(replica) for replica in replicas]
    await replicas[1].sleep()
    await adapter.resume(tags=["weights"])
    weights = AutoModelForCausalLM.from_pretrained(model_path).state_dict()
    await adapter.update_weights(((name, tensor * 1.5) for name, tensor in weights.items()), global_steps=3)
    await adapter.resume(tags=["kv_cache"])
    after = [await ask(replica) for replica in replicas]
    assert before[0].log_probs == before[1].log_probs == after[0].log_probs != after[1].log_probs
    assert after[1].extra_fields["global_steps"] == 3

    await resume_with_requests_outstanding(replicas[0])
    call = ask(replicas[1], max_tokens=4000, ignore_eos=True)
    ray.kill(replicas[1].server_handle)
    with pytest.raises(ActorDiedError, match="transformers_server_solver_7"):
        await call


async def resume_with_requests_outstanding(replica):
    """Fill the 1,000 concurrent calls that verl allows the actor. If a resume were one of these calls, it would have to
    wait for another call to end."""
    await replica.abort_all_requests()
    calls = [
        replica.server_handle.generate.remote([5, 6, 7 + number % 200], {"ignore_eos": True}, f"r{number}")
        for number in range(OUTSTANDING)
    ]
    await asyncio.wait_for(replica.resume_generation(), 60)
    replies = await asyncio.wait_for(asyncio.gather(*calls), 60)
    assert {len(reply.token_ids) for reply in replies} == {16}


class GpusThatAreCpus(PlatformCUDA):
    """A platform on which Ray places processes as on GPUs, and the processes compute on the CPU."""

    device_name = "cpu"


async def gpus_seen_by(actor):
    seen = await actor.__ray_call__.remote(lambda _: os.environ["CUDA_VISIBLE_DEVICES"])
    assert seen
    return seen


def ask(replica, **params):
    return replica.server_handle.generate.remote(
        prompt_ids=[5, 6], sampling_params={"temperature": 0, **params}, request_id="r"
    )
