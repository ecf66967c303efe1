"""Report the memory of a training process. verl's own code decides when the model and the optimiser move."""

from __future__ import annotations

import os
from collections.abc import Callable
from types import ModuleType
from typing import Any
from unittest import mock

from ledger import process
from ledger.events import ADAM, BUCKET, GRADIENTS, OPTIMIZER_STEP, SCORE_BATCH, SHARDS, UPDATE_BATCH, Holder
from ledger.platform import OnCard
from ledger.process import holding, report

Wrapped = Callable[..., Any]


def join_ledger(init: Wrapped, worker: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """Start the worker, and let it report. Its share of a GPU in Ray is on one card."""
    import ray

    from verl_mas.config.engine_tag import EngineTag

    init(*args, **kwargs)
    [card] = ray.get_runtime_context().get_accelerator_ids()["GPU"]
    process.join(Holder("trainer", EngineTag.of(worker.config.rollout).policy, int(os.environ["RANK"])), card)


async def sync(update: Wrapped, adapter: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    with holding("send weights", BUCKET):
        return await update(*args, **kwargs)


def install(transformer_impl: ModuleType) -> None:
    """Register the training engine that reports, and replace verl's copies between card and host by reports."""
    from verl_mas.engines.platform.fsdp import CpuEngineWithLMHead

    class LedgerEngine(CpuEngineWithLMHead):
        def _build_fsdp_module(self, module: Any) -> Any:
            built = super()._build_fsdp_module(module)
            report("load", SHARDS)
            return built

        def to(self, device: str, model: bool = True, optimizer: bool = True, grad: bool = True) -> None:
            # verl must see the card and the host as two devices, although both are the CPU here.
            with mock.patch.object(transformer_impl, "get_device_name", return_value="card"):
                super().to("card" if isinstance(device, OnCard) else "cpu", model, optimizer, grad)

        def forward_backward_batch(self, data: Any, loss_function: Any, forward_only: bool = False) -> Any:
            if not forward_only:
                report("backward", GRADIENTS)
            with holding("log-probs" if forward_only else "backward", SCORE_BATCH if forward_only else UPDATE_BATCH):
                return super().forward_backward_batch(data, loss_function, forward_only)

        def optimizer_step(self) -> Any:
            report("optimizer step", ADAM)
            with holding("optimizer step", OPTIMIZER_STEP):
                return super().optimizer_step()  # type: ignore[no-untyped-call]

        def optimizer_zero_grad(self) -> None:
            super().optimizer_zero_grad()  # type: ignore[no-untyped-call]
            report("zero_grad", free=(GRADIENTS,))

    register = transformer_impl.EngineRegistry.register
    register(model_type="language_model", backend=["fsdp", "fsdp2"], device="cpu", vendor="ledger")(LedgerEngine)
    for move in (load_fsdp_model_to_gpu, offload_fsdp_model_to_cpu, load_fsdp_optimizer, offload_fsdp_optimizer):
        setattr(transformer_impl, move.__name__, move)


def load_fsdp_model_to_gpu(model: Any) -> None:
    report("load model", SHARDS)


def offload_fsdp_model_to_cpu(model: Any) -> None:
    """Report the offload of the model. Like verl's function, empty the cache afterwards."""
    from verl.utils.device import get_torch_device

    report("offload model", free=(SHARDS,))
    get_torch_device().empty_cache()


def load_fsdp_optimizer(optimizer: Any, device_id: str) -> None:
    if optimizer.state:
        report("load optimizer", ADAM)


def offload_fsdp_optimizer(optimizer: Any) -> None:
    """Report the offload of the optimiser. Like verl's function, do not empty the cache."""
    if optimizer.state:
        report("offload optimizer", free=(ADAM,))
