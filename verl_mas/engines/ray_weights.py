"""rollout.checkpoint_engine.backend=ray: send weights through Ray's object store, on machines without GPUs or where
weights cannot be sent from GPU to GPU.

This is a checkpoint engine of verl. Rank 0 of the training processes puts the weights into the object store, bucket by
bucket, and hands each bucket to the receiving processes next to the engines. verl imports this module in both kinds of
processes (`rollout.checkpoint_engine.custom_backend_module`).
"""

import asyncio
from collections.abc import AsyncIterator, Iterable, Sequence

import ray
import torch
from verl.checkpoint_engine.base import CheckpointEngine, CheckpointEngineRegistry
from verl.utils.device import get_device_id, get_torch_device

from verl_mas.engines.transformers.weights import Packed, pack, unpack
from verl_mas.errors import EngineLost
from verl_mas.verl_.types import Actor

BACKEND = "ray"
AHEAD = 2  # buckets that may wait at a receiver, since the object store must not hold the whole model
POLL_S = 0.005


@CheckpointEngineRegistry.register(BACKEND)
class RayWeights(CheckpointEngine):
    """Checkpoint engine on Ray's object store. For each transfer verl calls `prepare` and `init_process_group`, then
    `send_weights` and `receive_weights` at the same time, then `finalize`."""

    def __init__(self, bucket_size: int, is_master: bool = False):
        self.bucket_size = bucket_size
        self._receivers: Sequence[Actor] = ()
        self._arrived: asyncio.Queue[list[Packed] | None] | None = None

    def prepare(self) -> Actor:  # type: ignore[override]  # verl passes the actor on to `build_topology` as it is
        self._arrived = asyncio.Queue()
        own: Actor = ray.get_runtime_context().current_actor
        return own

    @classmethod
    def build_topology(  # type: ignore[override]  # `prepare` returns a type of this engine
        cls, actor_wg_world_size: int, rollout_world_size: int, metadata: list[Actor]
    ) -> tuple[dict[str, list[object]], dict[str, list[object]]]:
        """Make the first training process the only sender. It sends to all engines."""
        senders: list[object] = [metadata[actor_wg_world_size:], *([()] * (actor_wg_world_size - 1))]
        return {"receivers": senders}, {"receivers": [()] * rollout_world_size}

    def init_process_group(self, receivers: Sequence[Actor]) -> None:  # type: ignore[override]  # as above
        self._receivers = receivers

    def finalize(self) -> None:
        self._receivers, self._arrived = (), None

    async def send_weights(self, weights: Iterable[tuple[str, torch.Tensor]], global_steps: int | None = None) -> None:
        if not self._receivers:
            for _ in weights:
                """Gather the tensor, because gathering needs every worker, and discard it."""
            return
        async for bucket in pack(weights, self.bucket_size):
            waiting = await self._each("put", ray.put(bucket))
            while max(waiting) > AHEAD:
                await asyncio.sleep(POLL_S)
                waiting = await self._each("waiting")
        await self._each("put", None)

    async def _each(self, method: str, *given: object) -> list[int]:
        """Call a method of this class at every receiver. Ray replaces a reference among the arguments by its value."""
        return await asyncio.gather(*[to.execute_checkpoint_engine.remote(method, *given) for to in self._receivers])

    def put(self, bucket: list[Packed] | None) -> int:
        """Queue a bucket; called by the sender. A bucket of None means that all weights were sent."""
        self._queue.put_nowait(bucket)
        return self.waiting()

    def waiting(self) -> int:
        return self._queue.qsize()

    async def receive_weights(self, global_steps: int | None = None) -> AsyncIterator[tuple[str, torch.Tensor]]:  # type: ignore[override]
        device = get_device_id() if get_torch_device().is_available() else "cpu"
        try:
            while (bucket := await self._queue.get()) is not None:
                for packed in bucket:
                    yield packed.name, unpack(packed).to(device)
        finally:
            # Make further buckets raise an error. If they were queued, the sender would wait forever for a reader.
            self._arrived = None

    @property
    def _queue(self) -> asyncio.Queue[list[Packed] | None]:
        if self._arrived is None:
            raise EngineLost("weights arrived at an engine that does not wait for any")
        return self._arrived
