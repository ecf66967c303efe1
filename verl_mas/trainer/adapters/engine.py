"""verl's FSDP2 engine with several LoRA adapters on one frozen base, and verl's worker with this engine.

All adapters are always trainable; the base is always frozen. A flag of each layer selects the adapter that computes.
PEFT's own `set_adapter` and `disable_adapter` are not used, because they also switch `requires_grad`. With them, all
adapters but one would stay frozen after a pass of the reference model, and their updates would silently have a gradient
of zero. Besides, if nothing is trainable in the very first forward pass, FSDP2 does not determine the dtype of
gradients, so the first backward pass in bfloat16 fails.
"""

import copy
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TypeGuard, TypeVar, cast

import torch
from omegaconf import DictConfig, OmegaConf
from peft import LoraConfig, PeftModel, TaskType, get_peft_model
from peft.tuners.lora import LoraLayer
from tensordict import TensorDict
from torch import Tensor, nn
from torch.distributed.fsdp.sharded_grad_scaler import ShardedGradScaler
from torch.distributed.tensor import DTensor, distribute_tensor
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LambdaLR
from transformers import PreTrainedModel
from verl.single_controller.base.decorator import make_nd_compute_dataproto_dispatch_fn, register
from verl.utils import tensordict_utils as tu
from verl.utils.config import omega_conf_to_dataclass
from verl.utils.device import get_device_id, get_device_name, get_torch_device
from verl.utils.py_functional import convert_to_regular_types
from verl.workers.config import DistillationConfig, FSDPOptimizerConfig, TrainingWorkerConfig
from verl.workers.config.optimizer import build_optimizer
from verl.workers.engine import EngineRegistry
from verl.workers.engine_workers import TrainingWorker
from verl.workers.utils.losses import ppo_loss

from verl_mas.config.adapters import ADAPTER, Adapter, read_table
from verl_mas.engines.adapters import stream_name
from verl_mas.engines.platform.fsdp import CpuEngineWithLMHead, SharedPrefixes, chosen
from verl_mas.errors import ConfigError
from verl_mas.trainer.adapters import files
from verl_mas.trainer.adapters.files import OptimizerState
from verl_mas.trainer.loss_weights import Loss
from verl_mas.trainer.policies.worker import PolicyWorker, on_all

T = TypeVar("T")
F = TypeVar("F", bound=Callable[..., object])
# Vendor name by which verl's registry finds this engine, while `strategy` stays fsdp2.
VENDOR = "verl_mas_adapters"


@dataclass
class AdapterTraining:
    """Optimiser and schedule of one adapter. The engine has them as its own attributes while the adapter is in use."""

    optimizer: Optimizer
    lr_scheduler: LambdaLR
    optimizer_config: FSDPOptimizerConfig
    scaler: ShardedGradScaler | None


@EngineRegistry.register(model_type="language_model", backend="fsdp2", device=["cuda", "npu"], vendor=VENDOR)
class FsdpAdapterEngine(SharedPrefixes):
    """Engine that computes with the bare base, except inside `with engine.adapter(policy)`.

    The layers' flags must be the same in all workers at all times, as otherwise collective operations would not match.
    The flags must also not change between a forward and its backward, because gradient checkpointing recomputes the
    forward in the backward.
    """

    adapters: Mapping[str, Adapter]  # policy -> adapter; set before `initialize`
    module: PeftModel

    def initialize(self) -> None:
        self._is_lora = True
        self._used: str | None = None
        self.training: dict[str, AdapterTraining] = {}
        super().initialize()
        for policy, adapter in self.adapters.items():
            if adapter.path is not None:
                self._load_weights(policy, Path(adapter.path))

    # -- which adapter computes ----------------------------------------------------------------------------

    @contextmanager
    def adapter(self, policy: str | None) -> Iterator[None]:
        """Select the adapter of a policy for computing and training; None: the bare base."""
        before = self._used
        self._use(policy)
        try:
            yield
        finally:
            self._use(before)

    def disable_adapter(self) -> AbstractContextManager[None]:
        """Compute with the bare base; verl calls this method for the reference model."""
        return self.adapter(None)

    def _use(self, policy: str | None) -> None:
        self._used = policy
        for layer in self._layers:
            layer._disable_adapters = policy is None  # noqa: SLF001  the public methods switch requires_grad
            if policy is not None:
                layer._active_adapter = [self.adapters[policy].name]  # noqa: SLF001
        if policy is None:
            self.optimizer = self.lr_scheduler = self.scaler = None
        else:
            used = self.training[policy]
            self.optimizer, self.lr_scheduler = used.optimizer, used.lr_scheduler
            self.optimizer_config, self.scaler = used.optimizer_config, used.scaler  # type: ignore[assignment]

    # -- parts of verl's set-up ----------------------------------------------------------------------------

    def _build_lora_module(self, module: nn.Module) -> PeftModel:
        """Add all adapters to the base; verl calls this method before FSDP2 shards the parameters.

        Adapters keep PEFT's float32 even if the base has another dtype, because bfloat16 cannot represent the small
        changes of an update.
        """
        module.enable_input_require_grads()  # type: ignore[operator]
        peft: PeftModel | None = None
        for adapter in self.adapters.values():
            # The initial weights of an adapter depend on its own seed only.
            with torch.random.fork_rng(devices=[]):
                torch.manual_seed(adapter.seed)
                if peft is None:
                    made = get_peft_model(cast(PreTrainedModel, module), self._lora_config(adapter), adapter.name)
                    peft = cast(PeftModel, made)
                else:
                    peft.add_adapter(adapter.name, self._lora_config(adapter))
        assert isinstance(peft, PeftModel), "a base without adapters"
        for parameters in self._named(peft).values():
            for parameter in parameters.values():
                parameter.requires_grad_()
        return peft

    def _lora_config(self, adapter: Adapter) -> LoraConfig:
        """Build the same LoRA configuration as verl."""
        model = self.model_config
        return LoraConfig(
            task_type=TaskType.CAUSAL_LM,
            r=adapter.rank,
            lora_alpha=int(adapter.alpha) if float(adapter.alpha).is_integer() else adapter.alpha,  # type: ignore[arg-type]
            target_modules=convert_to_regular_types(adapter.target_modules),
            exclude_modules=convert_to_regular_types(adapter.exclude_modules),
            bias="none",
            base_model_name_or_path=model.path,
        )

    def _named(self, module: nn.Module) -> dict[str, dict[str, nn.Parameter]]:
        """Return the parameters of each policy's adapter, by policy and by name in PEFT's files."""
        named = [(key.split("."), parameter) for key, parameter in module.named_parameters()]
        return {
            policy: {
                ".".join(part for part in parts if part != adapter.name): parameter
                for parts, parameter in named
                if adapter.name in parts
            }
            for policy, adapter in self.adapters.items()
        }

    def _build_optimizer(self, module: nn.Module) -> None:
        """Build one optimiser per adapter, over the adapter's parameters and with its own schedule."""
        # Keep the parameters here, because FSDP2 replaces them by unsharded tensors during a forward.
        self.parameters = self._named(module)
        self._layers = [layer for layer in module.modules() if isinstance(layer, LoraLayer)]
        for policy, adapter in self.adapters.items():
            self.optimizer_config = omega_conf_to_dataclass(OmegaConf.create({"optim": adapter.actor["optim"]}).optim)
            optimizer = build_optimizer(list(self.parameters[policy].values()), self.optimizer_config)
            schedule = super()._build_lr_scheduler(optimizer)
            scaler = copy.deepcopy(self.scaler)
            self.training[policy] = AdapterTraining(optimizer, schedule, self.optimizer_config, scaler)
        self._use(None)

    def _build_lr_scheduler(self, optimizer: None) -> None:
        """Do nothing: the schedulers are built with the optimisers."""

    # -- weights for engines and checkpoints ----------------------------------------------------------------

    def get_per_tensor_param(  # type: ignore[override]
        self, layered_summon: bool = False, base_sync_done: bool = False, **kwargs: object
    ) -> tuple[Iterator[tuple[str, Tensor]], dict[str, dict[str, object]]]:
        """Return all adapters in one stream, in the dtype that the trainer computes with, and PEFT's configuration of
        each."""
        assert base_sync_done, "its engines read the base from disk: `SharedBase` sets load_format"
        return self._stream(), {policy: self._plain_config(policy) for policy in self.adapters}

    def _stream(self) -> Iterator[tuple[str, Tensor]]:
        for policy, parameters in self.parameters.items():
            for key, parameter in parameters.items():
                yield stream_name(policy, key), whole(parameter).to(self._autocast_dtype)

    def _plain_config(self, policy: str) -> dict[str, object]:
        config = self.module.peft_config[self.adapters[policy].name]
        assert isinstance(config, LoraConfig)
        return files.plain_config(config)

    def save_adapter(self, policy: str, folder: Path) -> None:
        """Save an adapter's weights, and the state from which its training resumes.

        All workers must call this method; only the first worker writes.
        """
        training, parameters = self.training[policy], self.parameters[policy]
        weights = {key: whole(parameter).cpu() for key, parameter in parameters.items()}
        optimizer = optimizer_state(training.optimizer, parameters)
        if self.rank == 0:
            files.write_weights(folder, self._plain_config(policy), weights)
            files.write_training(folder, optimizer, training.lr_scheduler.last_epoch)
        torch.distributed.barrier()

    def load_adapter(self, policy: str, folder: Path) -> None:
        """Load the adapter saved by `save_adapter`; only the first worker reads. Learning rates come from this run's
        settings."""
        self._load_weights(policy, folder)
        training = self.training[policy]
        optimizer, steps = files.read_training(folder) if self.rank == 0 else (None, 0)
        set_optimizer_state(training.optimizer, self.parameters[policy], optimizer)
        _set_schedule(training.lr_scheduler, _of_first(steps))

    def _load_weights(self, policy: str, folder: Path) -> None:
        parameters = self.parameters[policy]
        given = files.read_weights(folder, self._plain_config(policy)) if self.rank == 0 else {}
        if self.rank == 0:
            _check_same(policy, folder, parameters, given)
        for key, parameter in parameters.items():
            parameter.data.copy_(split_as(parameter, given.get(key)))

    def save_checkpoint(self, local_path: str, *args: object, **kwargs: object) -> None:
        """Save the random state of each worker. The base is not saved, because it does not change."""
        Path(local_path).mkdir(parents=True, exist_ok=True)
        state = {"cpu": torch.get_rng_state(), get_device_name(): get_torch_device().get_rng_state()}
        torch.save(state, self._random_state(local_path))
        torch.distributed.barrier()

    def load_checkpoint(self, local_path: str, *args: object, **kwargs: object) -> None:
        """Load the random state, if the checkpoint was saved with the same number of workers."""
        file = self._random_state(local_path)
        if file.exists():
            state = torch.load(file, weights_only=True)
            torch.set_rng_state(state["cpu"])
            get_torch_device().set_rng_state(state[get_device_name()])

    def _random_state(self, folder: str) -> Path:
        return Path(folder) / f"random_state_{self.rank}_of_{torch.distributed.get_world_size()}.pt"


def _set_schedule(schedule: LambdaLR, steps: int) -> None:
    """Set a learning-rate schedule to its state after `steps` steps."""
    rates = [rate * factor(steps) for rate, factor in zip(schedule.base_lrs, schedule.lr_lambdas, strict=True)]
    schedule.load_state_dict(schedule.state_dict() | {"last_epoch": steps, "_step_count": steps + 1, "_last_lr": rates})
    for group, rate in zip(schedule.optimizer.param_groups, rates, strict=True):
        group["lr"] = rate


def _check_same(policy: str, folder: Path, parameters: Mapping[str, Tensor], given: Mapping[str, Tensor]) -> None:
    """Raise ConfigError if weights in a folder differ in name or shape from the weights of the policy's adapter."""
    expected = {key: tuple(parameter.shape) for key, parameter in parameters.items()}
    there = {key: tuple(tensor.shape) for key, tensor in given.items()}
    if expected != there:
        wrong = sorted(key for key in expected.keys() | there.keys() if expected.get(key) != there.get(key))
        raise ConfigError(
            f"the adapter in {folder} does not fit policy {policy}: {len(wrong)} weights differ. {wrong[0]} is "
            f"{there.get(wrong[0], 'not')} in the folder, and {expected.get(wrong[0], 'not')} in the policy",
            rule="an adapter has the modules and sizes with which its weights were trained",
            fix="set model.path of the base and model.target_modules of the policy to those of that training, or start "
            "from another adapter",
        )


@EngineRegistry.register(model_type="language_model", backend="fsdp2", device="cpu", vendor=VENDOR)
class CpuAdapterEngine(FsdpAdapterEngine, CpuEngineWithLMHead): ...


def whole(tensor: Tensor) -> Tensor:
    """Return an unsharded copy of a tensor on the device. Offloaded shards are gathered on the device, too."""
    tensor = tensor.detach()
    if isinstance(tensor, DTensor):
        tensor = tensor.to(get_device_id()).full_tensor()  # type: ignore[attr-defined]
    # With a single worker, `full_tensor` returns the parameter itself, so a copy is needed.
    return tensor.clone()


def split_as(like: Tensor, given: Tensor | None) -> Tensor:
    """Shard the first worker's tensor as `like` is sharded. The other workers' tensors are ignored."""
    if given is None or given.is_meta:
        given = torch.empty(like.shape)
    given = given.to(get_device_id(), like.dtype)
    return distribute_tensor(given, like.device_mesh, like.placements) if isinstance(like, DTensor) else given


def optimizer_state(optimizer: torch.optim.Optimizer, parameters: Mapping[str, Tensor]) -> OptimizerState:
    """Return the state of an optimiser for each parameter that it has updated, unsharded and in host memory."""
    return {
        key: {name: _saved(value, f"{name} of {key}") for name, value in optimizer.state[parameter].items()}
        for key, parameter in parameters.items()
        if parameter in optimizer.state
    }


def set_optimizer_state(
    optimizer: torch.optim.Optimizer, parameters: Mapping[str, Tensor], given: OptimizerState | None
) -> None:
    """Load a state that `optimizer_state` has returned. The first worker passes it; the other workers pass None."""
    known = _known_to_all(given)
    state = {
        number: {name: split_as(parameters[key], value) if _is_split(value) else value for name, value in own.items()}
        for number, key in enumerate(parameters)
        if (own := known.get(key)) is not None
    }
    optimizer.load_state_dict({"state": state, "param_groups": optimizer.state_dict()["param_groups"]})


def _saved(value: object, what: str) -> object:
    if not isinstance(value, Tensor):
        return value
    if value.dim() and not isinstance(value, DTensor):
        raise TypeError(f"optimizer state {what} is not split as its parameter is, so it cannot be saved whole")
    return whole(value).cpu()


def _is_split(value: object) -> TypeGuard[Tensor]:
    return isinstance(value, Tensor) and value.dim() > 0


def _known_to_all(given: OptimizerState | None) -> OptimizerState:
    """Return the first worker's state in all workers. The other workers get its tensors without data, on the meta
    device."""
    outline = given and {
        key: {name: value.to("meta") if _is_split(value) else value for name, value in own.items()}
        for key, own in given.items()
    }
    of_first = _of_first(outline)
    known = of_first if given is None else given
    assert known is not None
    return known


def _of_first(value: T) -> T:
    """Return the first worker's value in all workers."""
    box = [value]
    torch.distributed.broadcast_object_list(box, src=0)
    return box[0]


# verl's decorators have no types.
def _on_rows(method: F) -> F:
    """Register a method that is called in all workers, each with its part of the rows."""
    return cast(F, register(dispatch_mode=make_nd_compute_dataproto_dispatch_fn(mesh_name="actor"))(method))


class _TrainingWorker(TrainingWorker):
    """verl's training worker, with the engine for adapters."""

    engine: FsdpAdapterEngine

    def __init__(self, adapters: Mapping[str, Adapter], config: TrainingWorkerConfig):
        with chosen(VENDOR):
            super().__init__(config)
        assert isinstance(self.engine, FsdpAdapterEngine), "checks.adapters refuses another strategy"
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
