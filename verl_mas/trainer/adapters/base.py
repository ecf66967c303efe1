"""The weights that adapters share, with the processes that train the adapters and the engines that serve them."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import ray
from omegaconf import DictConfig, open_dict
from verl.single_controller.ray import RayResourcePool

from verl_mas.config.adapters import Adapter, write_table
from verl_mas.trainer.adapters.worker import AdapterWorker
from verl_mas.trainer.checkpoint import Kept, Saved
from verl_mas.trainer.policies.local_policy import LocalPolicy

if TYPE_CHECKING:
    from verl_mas.trainer.adapters.policy import AdapterPolicy
    from verl_mas.trainer.policies.policy_trainer import PolicyTrainer


class SharedBase(LocalPolicy):
    """A policy that is not trained, with adapters. Requests that name no adapter are served by its own weights."""

    def __init__(
        self, name: str, view: DictConfig, pool: RayResourcePool, table: Mapping[str, Adapter], total_steps: int
    ):
        write_table(view, table)
        with open_dict(view):
            # Its engines read its weights from the model's files, and are sent the adapters only.
            view.actor_rollout_ref.rollout.load_format = "auto"
        super().__init__(name, view, pool, total_steps)
        self.adapters: dict[str, AdapterPolicy] = {}
        self.metrics: dict[str, float] = {}
        self._kept = Kept()

    def _setup(self) -> None:
        super()._setup()
        self._sent_bytes: int = self.actor_rollout_wg.sent_bytes()[0]

    def _init_resource_pool_mgr(self) -> None:
        super()._init_resource_pool_mgr()
        self.role_worker_mapping = {role: ray.remote(AdapterWorker) for role in self.role_worker_mapping}

    @property
    def trained(self) -> Mapping[str, PolicyTrainer]:
        return self.adapters

    @contextmanager
    def on_device(self) -> Iterator[None]:
        """Otherwise verl would move the base to the GPU and back for every call with one of its adapters."""
        if self.offloads:
            self.actor_rollout_wg.to("device", model=True, optimizer=False, grad=False)
        yield
        if self.offloads:
            self.actor_rollout_wg.to("cpu", model=True, optimizer=False, grad=False)

    def wake(self, step: int) -> None:
        """Send the engines all adapters, and let them take their memory."""
        start = time.perf_counter()
        super().wake(step)
        self.metrics = {"sync/seconds": time.perf_counter() - start, "sync/mb": self._sent_bytes / 1e6}

    # -- checkpoints ----------------------------------------------------------------------------------------

    @property
    def saved(self) -> dict[str, Saved]:
        return {self.name: self, **self.adapters}

    def save(self, folder: str, remote: str | None, step: int, keep: int | None) -> None:
        """The random state of its processes. Its weights are those of its model."""
        own = Path(folder, self.name)
        self.actor_rollout_wg.save_checkpoint(str(own))
        self._kept.add(own, keep)

    def load(self, folder: str, delete: bool) -> None:
        self.actor_rollout_wg.load_checkpoint(str(Path(folder, self.name)))
