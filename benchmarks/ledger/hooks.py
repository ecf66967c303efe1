"""The hooks that write the ledger of a run. VERL_USE_EXTERNAL_MODULES makes verl load this module in every process.

The platform `ledger` is the CPU, but verl and the plugin offload as on a GPU: the plugin does not take
`trainer.device=ledger` for the CPU, and verl's own code moves the training engine. The moves copy nothing.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from types import ModuleType
from typing import Any

from wrapt import register_post_import_hook, wrap_function_wrapper

from ledger import PLATFORM

Wrapped = Callable[..., Any]


def _platform(platform_manager: ModuleType) -> None:
    from ledger.platform import PlatformLedger

    platform_manager.PlatformRegistry.register(platform=PLATFORM)(PlatformLedger)


def _process_group(distributed: ModuleType) -> None:
    if os.environ.get("VERL_PLATFORM") == PLATFORM:
        from verl_mas.engines.platform.process_group import patch

        patch(distributed)


def _training_engine(transformer_impl: ModuleType) -> None:
    if os.environ.get("VERL_PLATFORM") == PLATFORM:
        from ledger.trainer import install

        install(transformer_impl)


def _worker(engine_workers: ModuleType) -> None:
    from ledger.trainer import join_ledger

    wrap_function_wrapper(engine_workers, "ActorRolloutRefWorker.__init__", join_ledger)


def _adapter(adapter: ModuleType) -> None:
    from ledger.trainer import sync

    wrap_function_wrapper(adapter, "ServerAdapter.update_weights", sync)


def _server(replica: ModuleType) -> None:
    from ledger.engine import LedgerServer

    vars(replica)["TransformersServer"] = LedgerServer


def _phases(trainer: ModuleType) -> None:
    from ledger.phases import install

    install(trainer)


HOOKS = {
    "verl.plugin.platform.platform_manager": _platform,
    "verl.utils.distributed": _process_group,
    "verl.workers.engine.fsdp.transformer_impl": _training_engine,
    "verl.workers.engine_workers": _worker,
    "verl_mas.engines.transformers.adapter": _adapter,
    "verl_mas.engines.transformers.replica": _server,
    "verl_mas.trainer.trainer": _phases,
}
for _module, _hook in HOOKS.items():
    register_post_import_hook(_hook, _module)
