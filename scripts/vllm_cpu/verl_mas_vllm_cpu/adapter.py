"""The actor worker's side of a weight sync. If the engine fails, the sync fails too and does not wait indefinitely."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from concurrent.futures import Future
from typing import cast

import torch
import zmq
from ray.exceptions import RayError
from verl.workers.rollout.vllm_rollout.bucketed_weight_transfer import BucketedWeightSender
from verl.workers.rollout.vllm_rollout.vllm_rollout import ServerAdapter

from verl_mas.engines.stock import OffsetAdapter
from verl_mas.errors import EngineLost
from verl_mas_vllm_cpu.watched_socket import WatchedSocket


class CpuServerAdapter(OffsetAdapter, ServerAdapter):
    async def resume(self, tags: list[str]) -> None:
        """vLLM's CPU build has no sleep mode."""

    async def release(self) -> None:
        """vLLM's CPU build has no sleep mode."""

    @torch.no_grad()
    async def update_weights(  # type: ignore[override]  # verl's own adapter narrows its base class
        self,
        weights: Iterable[tuple[str, torch.Tensor]],
        global_steps: int | None = None,
        wire_format: str = "named_tensors",
        **kwargs: object,
    ) -> None:
        assert wire_format == "named_tensors", f"on the CPU vLLM takes whole tensors, not {wire_format}"
        try:
            await self._send(weights, **kwargs)
            if self._has_server:
                await self.server_handle.clear_kv_cache.remote()
                if global_steps is not None:
                    await self.server_handle.set_global_steps.remote(global_steps)
        except (RayError, EngineLost) as error:
            name = f"{self._get_server_name_prefix()}server_{self.replica_rank}_{self.node_rank}"
            failed = f"vLLM engine {name} failed while it took the weights of step {global_steps}"
            raise EngineLost(f"{failed}: {error}") from error

    async def _send(self, weights: Iterable[tuple[str, torch.Tensor]], **kwargs: object) -> None:
        # Only the replica's first rank calls the server. Every rank sends weights to its own vLLM worker.
        call = await self._execute_method("update_weights_from_ipc", non_block=True, kwargs={**kwargs, "use_shm": True})
        reload: Future[None] | None = call.future() if call is not None else None
        sender = WatchedWeightSender(
            zmq_handle=self.zmq_handle,
            bucket_size_mb=self.config.checkpoint_engine.update_weights_bucket_megabytes,
            receiver=reload,
        )
        await sender.async_send_weights(weights)
        if reload is not None:
            await asyncio.wrap_future(reload)


class WatchedWeightSender(BucketedWeightSender):
    """verl's sender through shared memory, with a watch on the receiver. Without the watch, the sender would wait
    indefinitely for a receiver that has ended."""

    def __init__(self, zmq_handle: str, bucket_size_mb: int, receiver: Future[None] | None):
        super().__init__(zmq_handle, bucket_size_mb, use_shm=True)
        self.receiver = receiver

    def _init_socket(self) -> None:
        super()._init_socket()
        socket = cast("zmq.Socket[bytes]", self.socket)
        self.socket = WatchedSocket(socket, self.receiver)  # type: ignore[assignment]  # verl sets it to None first
