"""verl's vLLM engine, for several policies on one cluster; with vLLM's CPU build on the CPU platform."""

from __future__ import annotations

from types import ModuleType

from verl_mas import platform
from verl_mas.engines import stock, vllm_cpu
from verl_mas.engines.facts import ENGINES, EngineFacts, set_adapter
from verl_mas.engines.vllm_cpu.readiness import check_heads, require_ready

ENGINE = "vllm"


class PausableVllm:
    """A server that can free the GPU and keep its weights; verl's own sleep drops them."""

    async def pause(self) -> None:
        if self.node_rank == 0:  # type: ignore[attr-defined]
            await self.engine.sleep(level=1)  # type: ignore[attr-defined]

    async def unpause(self) -> None:
        if self.node_rank == 0:  # type: ignore[attr-defined]
            await self.engine.wake_up(tags=self._get_wake_up_tags())  # type: ignore[attr-defined]


def register_replica(replica: ModuleType) -> None:
    if platform.selected():
        replica.RolloutReplicaRegistry.register(ENGINE, vllm_cpu.load_replica)
    else:
        stock.register_replica(ENGINE, PausableVllm, replica)


def register_adapter(base: ModuleType) -> None:
    if platform.selected():
        set_adapter(base, ENGINE, vllm_cpu.ADAPTER)
    else:
        stock.register_adapter(ENGINE, base)


def check_ready(device: str | None) -> None:
    if device == platform.DEVICE:
        require_ready()


def check_model(path: str, device: str) -> None:
    if device == platform.DEVICE:
        check_heads(path)


ENGINES.register(ENGINE)(
    EngineFacts(
        package="vllm",
        gpu_fraction=True,
        pausable=PausableVllm,
        stock_adapter="verl.workers.rollout.vllm_rollout",
        register_replica=register_replica,
        register_adapter=register_adapter,
        check_ready=check_ready,
        check_model=check_model,
    )
)
