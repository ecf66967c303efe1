"""The side of the scheduler that lives in the server's event loop."""

from __future__ import annotations

import asyncio
import queue
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from sglang.srt.managers.io_struct import (
    AbortReq,
    FlushCacheReqInput,
    FlushCacheReqOutput,
    GenerateReqInput,
    LoadLoRAAdapterFromTensorsReqInput,
    ReleaseMemoryOccupationReqInput,
    ResumeMemoryOccupationReqInput,
    UnloadLoRAAdapterReqInput,
)
from sglang.srt.managers.scheduler import Scheduler
from sglang.srt.server_args import ServerArgs

ServerStatus = None  # verl imports it


@dataclass
class ReqState:
    finished: bool = False
    out_list: list[dict[str, Any]] = field(default_factory=list)
    event: asyncio.Event = field(default_factory=asyncio.Event)


class TokenizerManager:
    def __init__(self, server_args: ServerArgs):
        self.server_args = server_args
        self.rid_to_state: dict[str, ReqState] = {}
        # A name's id is another one after each load; the prefix tree knows adapters by id.
        self.lora_registry: dict[str, str] = {}
        self._to_scheduler: queue.Queue[tuple[object, asyncio.Future[Any] | None]] = queue.Queue()
        self._loop: asyncio.AbstractEventLoop | None = None
        self.scheduler = Scheduler(server_args, self._to_scheduler, self._from_scheduler)
        self.scheduler.start()

    async def generate_request(self, obj: GenerateReqInput, request: object = None) -> AsyncIterator[dict[str, Any]]:
        self._loop = asyncio.get_running_loop()
        if obj.rid in self.rid_to_state:
            raise ValueError(f"Duplicate request ID detected: {obj.rid}")
        if obj.lora_path is not None:
            if obj.lora_path not in self.lora_registry:
                raise ValueError(f"The following requested LoRA adapters are not loaded: {obj.lora_path}")
            obj.lora_id = self.lora_registry[obj.lora_path]
        state = self.rid_to_state[obj.rid] = ReqState()
        self._to_scheduler.put((obj, None))
        await state.event.wait()
        yield state.out_list[-1]

    def abort_request(self, rid: str = "", abort_all: bool = False) -> None:
        if abort_all or rid in self.rid_to_state:
            self._to_scheduler.put((AbortReq(rid, abort_all), None))

    async def flush_cache(self, timeout_s: float | None = None) -> FlushCacheReqOutput:
        flushed: FlushCacheReqOutput = await self._call(FlushCacheReqInput(timeout_s))
        return flushed

    async def release_memory_occupation(self, obj: ReleaseMemoryOccupationReqInput, request: object = None) -> None:
        await self._call(obj)

    async def resume_memory_occupation(self, obj: ResumeMemoryOccupationReqInput, request: object = None) -> None:
        await self._call(obj)

    async def load_lora_adapter_from_tensors(self, obj: LoadLoRAAdapterFromTensorsReqInput, _: object = None) -> None:
        if obj.lora_name in self.lora_registry:
            raise ValueError(f"LoRA with name {obj.lora_name} already exists")
        await self._call(obj)
        self.lora_registry[obj.lora_name] = obj.lora_id

    async def unload_lora_adapter(self, obj: UnloadLoRAAdapterReqInput, _: object = None) -> None:
        obj.lora_id = self.lora_registry.pop(obj.lora_name)
        await self._call(obj)

    async def _call(self, message: object) -> Any:
        self._loop = asyncio.get_running_loop()
        answer: asyncio.Future[Any] = self._loop.create_future()
        self._to_scheduler.put((message, answer))
        return await answer

    def _from_scheduler(self, to: asyncio.Future[Any] | str, content: Any, forget: bool) -> None:
        """Called in the scheduler's thread."""
        assert self._loop is not None
        self._loop.call_soon_threadsafe(partial(self._receive, to, content, forget))

    def _receive(self, to: asyncio.Future[Any] | str, content: Any, forget: bool) -> None:
        if not isinstance(to, str):
            if not to.done():
                to.set_result(content)
            return
        state = self.rid_to_state[to]
        state.finished = True
        state.out_list.append(content)
        state.event.set()
        if forget:
            del self.rid_to_state[to]
