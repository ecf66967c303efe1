"""A policy that is an adapter: it is trained as any policy is, by the processes of its base."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from omegaconf import DictConfig
from verl.single_controller.ray import RayWorkerGroup

from verl_mas.config.adapters import ADAPTER
from verl_mas.config.schema import Weighting
from verl_mas.data_plane import Rows
from verl_mas.trainer.adapters.base import SharedBase
from verl_mas.trainer.checkpoint import Kept
from verl_mas.trainer.policies.policy_trainer import PolicyTrainer
from verl_mas.trainer.policies.workers import Workers

T = TypeVar("T")
# What verl's trainer sets for a pass with the reference, which is the model without its adapter.
REFERENCE = "no_lora_adapter"
# What the processes of a base report beside verl's metrics of an actor.
ADAPTER_METRICS = ("adapter/updates", "adapter/norm")


class AdapterPolicy(PolicyTrainer):
    """A trainable policy whose processes and engines are those of its base."""

    def __init__(
        self,
        name: str,
        view: DictConfig,
        base: SharedBase,
        updates: int,
        total_steps: int,
        weighting: Weighting | None = None,
    ):
        super().__init__(name, view, base.pool, updates, total_steps, weighting)
        self.base = base
        self._kept = Kept()

    def _setup(self) -> None:
        """In place of verl's, which would start processes and engines."""
        self.tokenizer, self.processor = self.base.tokenizer, self.base.processor
        self.llm_server_manager = self.base.llm_server_manager
        self.actor_rollout_wg = AdapterWorkers(self.base.actor_rollout_wg.group, self.name)
        self.ref_in_actor = True
        if loss := self.row_weighted_loss():
            self.actor_rollout_wg.set_adapter_loss(self.name, loss)

    def update(self, rows: Rows, metrics: dict[str, float], *, counted: float) -> None:
        super().update(rows, metrics, counted=counted)
        for key in ADAPTER_METRICS:
            metrics[key] = metrics.pop(f"actor/{key}")

    def empty_cache(self) -> None:
        """The base does, once for all of its adapters."""

    def save(self, folder: str, remote: str | None, step: int, keep: int | None) -> None:
        own = Path(folder, self.name)
        with self.base.on_device():
            self.actor_rollout_wg.save_adapter(self.name, str(own))
        self._kept.add(own, keep)

    def load(self, folder: str, delete: bool) -> None:
        own = Path(folder, self.name)
        # The state of the optimiser goes where the parameters are, and stays there.
        with self.base.on_device():
            self.actor_rollout_wg.load_adapter(self.name, str(own))
        if delete:
            shutil.rmtree(own)


class AdapterWorkers(Workers):
    """The training processes of a base, which compute with one of its adapters."""

    def __init__(self, group: RayWorkerGroup, policy: str):
        super().__init__(group)
        self._policy = policy

    def on_rows(self, method: Callable[[Rows], T], rows: Rows) -> T:
        # The base is moved to the GPU once for several calls: `SharedBase.on_device`.
        rows.extra_info["disable_auto_offload"] = True
        if rows.extra_info.pop(REFERENCE, False):
            rows.extra_info.pop(ADAPTER, None)
        else:
            rows.extra_info[ADAPTER] = self._policy
        return super().on_rows(method, rows)
