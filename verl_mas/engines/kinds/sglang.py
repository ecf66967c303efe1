"""verl's SGLang engine, for several policies on one cluster."""

from __future__ import annotations

from functools import partial

from verl_mas.engines import stock
from verl_mas.engines.facts import ENGINES, EngineFacts

ENGINE = "sglang"


class PausableSglang:
    """A server that can free the GPU. `pause` drops the weights too; verl has SGLang keep a copy in host memory."""

    async def pause(self) -> None:
        await self.sleep()  # type: ignore[attr-defined]

    async def unpause(self) -> None:
        if self.node_rank == 0:  # type: ignore[attr-defined]
            from sglang.srt.managers.io_struct import ResumeMemoryOccupationReqInput

            request = ResumeMemoryOccupationReqInput(tags=["kv_cache", "weights"])
            await self.tokenizer_manager.resume_memory_occupation(request, None)  # type: ignore[attr-defined]


ENGINES.register(ENGINE)(
    EngineFacts(
        package="sglang",
        gpu_fraction=True,
        pausable=PausableSglang,
        base_port=30000,
        stock_adapter="verl.workers.rollout.sglang_rollout.sglang_rollout",
        register_replica=partial(stock.register_replica, ENGINE, PausableSglang),
        register_adapter=partial(stock.register_adapter, ENGINE),
    )
)
