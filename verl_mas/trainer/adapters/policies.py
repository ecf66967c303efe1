"""Policies that are adapters, and the base whose weights, training processes and engines they share."""

import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

from omegaconf import DictConfig, open_dict
from verl.single_controller.ray import RayResourcePool, RayWorkerGroup

from verl_mas.config.adapters import ADAPTER, Adapter, write_table
from verl_mas.config.run import View
from verl_mas.trainer.adapters.engine import AdapterWorker
from verl_mas.trainer.checkpoint import Saved
from verl_mas.trainer.policies.local_policy import LocalPolicy, Workers
from verl_mas.trainer.policies.policy_trainer import PolicyTrainer
from verl_mas.trainer.starting import Turn
from verl_mas.verl_.data_plane import Rows


class SharedBase(LocalPolicy):
    """An untrained policy with adapters. Requests that name no adapter are served with the policy's own weights."""

    worker = AdapterWorker

    def __init__(
        self, name: str, view: DictConfig, pool: RayResourcePool, table: Mapping[str, Adapter], total_steps: int
    ):
        write_table(view, table)
        with open_dict(view):
            # The engines read the base's weights from the model's files; only adapters are sent to them.
            view.actor_rollout_ref.rollout.load_format = "auto"
        super().__init__(name, view, pool, total_steps)
        self.adapters: dict[str, AdapterPolicy] = {}

    def start(self, turn: Turn) -> None:
        super().start(turn)
        for adapter in self.adapters.values():
            adapter.init()

    @contextmanager
    def on_device(self) -> Iterator[None]:
        """Keep the base on the device. Otherwise verl would move it to the GPU and back for every call with an
        adapter."""
        self.move("device")
        yield
        self.move("cpu")

    # -- checkpoints ----------------------------------------------------------------------------------------

    @property
    def saved(self) -> dict[str, Saved]:
        return {self.name: self, **self.adapters}

    def save(self, folder: str, remote: str | None, step: int, keep: int | None) -> None:
        """Save the random state of the processes. The weights are in the model's files and do not change."""
        self.actor_rollout_wg.save_checkpoint(str(Path(folder, self.name)))

    def load(self, folder: str, delete: bool) -> None:
        self.actor_rollout_wg.load_checkpoint(str(Path(folder, self.name)))


T = TypeVar("T")
# Key that verl's trainer sets for a pass of the reference model. Here the reference model is the base without adapter.
REFERENCE = "no_lora_adapter"


class AdapterPolicy(PolicyTrainer):
    """A trainable policy that uses the processes and engines of its base."""

    def __init__(self, view: View, base: SharedBase):
        super().__init__(view, view.copy(), base.pool, base.total_training_steps)
        self.base = base

    def init(self) -> None:
        """Use the processes and engines of the base; verl's `init` would start new ones."""
        self.tokenizer = self.base.tokenizer
        self.llm_server_manager = self.base.llm_server_manager
        self.actor_rollout_wg = AdapterWorkers(self.base.actor_rollout_wg.group, self.name)
        self.ref_in_actor = True
        if loss := self.own_loss():
            self.actor_rollout_wg.set_adapter_loss(self.name, loss)

    def empty_cache(self) -> None:
        """Do nothing: the base empties the cache once for all of its adapters."""

    def save(self, folder: str, remote: str | None, step: int, keep: int | None) -> None:
        with self.base.on_device():
            self.actor_rollout_wg.save_adapter(self.name, str(Path(folder, self.name)))

    def load(self, folder: str, delete: bool) -> None:
        own = Path(folder, self.name)
        # Move the parameters first: the optimiser's state is loaded to the parameters' device, and stays there.
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
        # Disable offloading per call: `SharedBase.on_device` moves the base to the GPU once for several calls.
        rows.extra_info["disable_auto_offload"] = True
        if rows.extra_info.pop(REFERENCE, False):
            rows.extra_info.pop(ADAPTER, None)
        else:
            rows.extra_info[ADAPTER] = self._policy
        return super().on_rows(method, rows)
