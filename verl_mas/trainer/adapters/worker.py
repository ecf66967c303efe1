"""The worker of a base, which computes with the adapter that a batch names, or with the bare base."""

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import TypeVar, cast

from omegaconf import DictConfig, OmegaConf
from tensordict import TensorDict
from verl.single_controller.base.decorator import make_nd_compute_dataproto_dispatch_fn, register
from verl.utils import tensordict_utils as tu
from verl.utils.config import omega_conf_to_dataclass
from verl.workers.config import DistillationConfig, TrainingWorkerConfig
from verl.workers.engine_workers import TrainingWorker
from verl.workers.utils.losses import ppo_loss

from verl_mas.config.adapters import ADAPTER, Adapter, read_table
from verl_mas.engines.platform.fsdp import chosen
from verl_mas.trainer.adapters import engine
from verl_mas.trainer.loss_weights import Loss
from verl_mas.trainer.policies.worker import PolicyWorker, on_all

F = TypeVar("F", bound=Callable[..., object])


# verl's decorators have no types.
def _on_rows(method: F) -> F:
    """Register a method that is called in all workers, each with its part of the rows."""
    return cast(F, register(dispatch_mode=make_nd_compute_dataproto_dispatch_fn(mesh_name="actor"))(method))


class _TrainingWorker(TrainingWorker):
    """verl's training worker, with the engine for adapters."""

    engine: engine.FsdpAdapterEngine

    def __init__(self, adapters: Mapping[str, Adapter], config: TrainingWorkerConfig):
        with chosen(engine.VENDOR):
            super().__init__(config)
        assert isinstance(self.engine, engine.FsdpAdapterEngine), "checks.adapters refuses another strategy"
        self.engine.adapters = adapters


class AdapterWorker(PolicyWorker):
    """verl's policy worker, extended for a base with adapters. `update_weights` sends all adapters to the engines."""

    actor: _TrainingWorker

    def __init__(
        self, config: DictConfig, role: str, distillation_config: DistillationConfig | None = None, **kwargs: object
    ):
        super().__init__(config, role, distillation_config, **kwargs)
        self.adapters = read_table(config.rollout.custom)
        self.actor_worker_cls = partial(_TrainingWorker, self.adapters)  # type: ignore[assignment]

    @on_all
    def init_model(self) -> None:
        super().init_model()
        # Each adapter has its own settings object, because verl's loss stores facts about the batch in it.
        self._losses: dict[str, Loss] = {
            policy: partial(ppo_loss, config=omega_conf_to_dataclass(OmegaConf.create(one.actor)))
            for policy, one in self.adapters.items()
        }

    @on_all
    def set_adapter_loss(self, policy: str, loss: Loss) -> None:
        """Train the adapter of a policy with `loss` instead of verl's loss."""
        self._losses[policy] = loss

    @_on_rows
    def compute_log_prob(self, data: TensorDict) -> TensorDict | None:
        """Compute with the adapter that the batch names.

        If it names no adapter, compute with the bare base, which is the reference model of every adapter.
        """
        policy = tu.pop(data, key=ADAPTER, default=None)
        with self.actor.engine.adapter(policy):
            return super().compute_log_prob(data)

    @_on_rows
    def update_actor(self, data: TensorDict) -> TensorDict | None:
        policy = tu.pop(data, key=ADAPTER, default=None)
        assert policy is not None, "the base of adapters is not trained"
        with self.actor.engine.adapter(policy):
            self.actor.set_loss_fn(self._losses[policy])
            return super().update_actor(data)

    @on_all
    def save_adapter(self, policy: str, folder: str) -> None:
        """Write a PEFT folder, and the state from which training resumes. Only the first worker writes."""
        self.actor.engine.save_adapter(policy, Path(folder))

    @on_all
    def load_adapter(self, policy: str, folder: str) -> None:
        self.actor.engine.load_adapter(policy, Path(folder))
