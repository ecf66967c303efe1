"""What a training worker sends to the embedded engine's server."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace

import pytest
import torch
from verl.workers.config import RolloutConfig

from verl_mas.engines.adapters import split_name, stream_name
from verl_mas.engines.transformers import ENGINE
from verl_mas.engines.transformers.adapter import ServerAdapter
from verl_mas.errors import ConfigError, EngineLost

WEIGHTS = [
    (stream_name(policy, f"{side}.weight"), torch.ones(4, 4)) for policy in ("solver", "verifier") for side in "AB"
]


def adapter_with(custom):
    """And what its server receives."""
    received = []

    class Remote:
        async def remote(self, bucket, last, global_steps=None):
            received.append(([one.name for one in bucket], sum(one.data.nbytes for one in bucket), last, global_steps))

    config = RolloutConfig(name=ENGINE, tensor_model_parallel_size=1, custom=custom)
    adapter = ServerAdapter(config, model_config=None, device_mesh=None, replica_rank=0)
    adapter._server = SimpleNamespace(update_weights=Remote())  # noqa: SLF001
    return adapter, received


def test_a_push_has_the_tensors_of_all_adapters_and_nothing_else_and_the_step():
    adapter, received = adapter_with(
        {"adapters": {name: {"policy": name, "rank": 4, "alpha": 4, "seed": 0} for name in ("solver", "verifier")}}
    )
    asyncio.run(adapter.update_weights(iter(WEIGHTS), peft_config=object(), global_steps=7))
    [(names, sent, last, step)] = received
    assert (names, sent, last, step) == ([name for name, _ in WEIGHTS], 4 * 64, True, 7)


@pytest.mark.parametrize(
    ("sent", "fix"), [({"peft_config": object()}, "lora.merge=True"), ({"wire_format": "other"}, "backend=naive")]
)
def test_what_the_server_cannot_take_is_refused(sent, fix):
    adapter, received = adapter_with(None)
    with pytest.raises(ConfigError, match=fix):
        asyncio.run(adapter.update_weights(iter(WEIGHTS), **sent))
    assert received == []


def test_a_name_in_the_stream_is_policy_and_key():
    assert split_name(stream_name("a.b", "model.x.lora_A.weight")) == ("a.b", "model.x.lora_A.weight")
    with pytest.raises(EngineLost, match=r"weight lm_head\.weight is of no adapter"):
        split_name("lm_head.weight")
