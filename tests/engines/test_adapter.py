"""What a training worker sends to the embedded engine's server."""

from __future__ import annotations

from types import SimpleNamespace

import torch
from verl.workers.config import RolloutConfig

from verl_mas.engines.adapters import stream_name
from verl_mas.engines.transformers import ENGINE
from verl_mas.engines.transformers.adapter import ServerAdapter

WEIGHTS = [
    (stream_name(policy, f"{side}.weight"), torch.ones(4, 4)) for policy in ("solver", "verifier") for side in "AB"
]


def adapter_with(custom):
    """And what its server receives."""
    received = []

    class Remote:
        async def remote(self, bucket, last, global_steps=None):
            names, size = [packed.name for packed in bucket], sum(packed.data.nbytes for packed in bucket)
            received.append((names, size, last, global_steps))

    config = RolloutConfig(name=ENGINE, tensor_model_parallel_size=1, custom=custom)
    adapter = ServerAdapter(config, model_config=None, device_mesh=None, replica_rank=0)
    adapter._server = SimpleNamespace(update_weights=Remote())  # noqa: SLF001
    return adapter, received


async def test_a_push_has_the_tensors_of_all_adapters_and_nothing_else_and_the_step():
    table = {name: {"policy": name, "rank": 4, "alpha": 4, "seed": 0} for name in ("solver", "verifier")}
    adapter, received = adapter_with({"adapters": table})
    await adapter.update_weights(iter(WEIGHTS), peft_config=object(), global_steps=7)
    assert received == [([name for name, _ in WEIGHTS], 4 * 64, True, 7)]
