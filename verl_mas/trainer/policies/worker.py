"""verl's training worker of a policy, extended to count the tensors of every push of weights.

Neither verl nor the engines refuse a push that lacks tensors, so an engine would keep old weights for these tensors.
Every push takes its weights from one method of the training engine, so the tensors are counted there. This covers
pushes to engines on the same devices, pushes through a checkpoint engine and pushes to the folder of a snapshot, with
whole weights, with adapters alone, or with adapters that are merged into their base.
"""

from collections.abc import Callable, Iterable, Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import TypeAlias, TypeVar, cast

from torch import Tensor, nn
from verl.single_controller.base.decorator import Dispatch, register
from verl.workers.engine.fsdp.transformer_impl import FSDPEngine
from verl.workers.engine_workers import ActorRolloutRefWorker, TrainingWorker

from verl_mas.config.engine_tag import SHARED_PREFIXES, EngineTag
from verl_mas.engines.platform.fsdp import VENDOR, SharedPrefixes, chosen
from verl_mas.errors import UpdateFailed
from verl_mas.run_folder.checkpoints import damaged
from verl_mas.verl_.types import Fields, Passed

F = TypeVar("F", bound=Callable[..., object])
Weights: TypeAlias = Iterable[tuple[str, Tensor]]
Collect: TypeAlias = Callable[..., tuple[Weights, Fields | None]]
LORA = "lora_"  # part of the names of an adapter's tensors


# A typed version of verl's decorator, which has no types.
def on_all(method: F) -> F:
    """Register a method that is called in all workers."""
    return cast(F, register(dispatch_mode=Dispatch.ONE_TO_ALL)(method))  # type: ignore[attr-defined]


class PolicyWorker(ActorRolloutRefWorker):
    @on_all
    def init_model(self) -> None:
        shares = (self.config.rollout.get("custom") or {}).get(SHARED_PREFIXES)
        with chosen(VENDOR) if shares else nullcontext():
            super().init_model()
        for worker in (self.actor, self.ref):
            if worker is not None and isinstance(worker.engine, SharedPrefixes) and shares is not None:
                worker.engine.share(shares)
        if "actor" in self.role:
            engine = cast(FSDPEngine, cast(TrainingWorker, self.actor).engine)  # checks refuse other strategies
            policy = EngineTag.of(self.config.rollout).policy
            counted = counting(engine.get_per_tensor_param, engine.module, policy)
            vars(engine).update(get_per_tensor_param=counted)

    @on_all
    def load_checkpoint(
        self, local_path: str, hdfs_path: str | None = None, del_local_after_load: bool = False
    ) -> None:
        refuse_damaged(Path(local_path), self.rank)
        super().load_checkpoint(local_path, hdfs_path, del_local_after_load)


class CriticWorker(TrainingWorker):
    """verl's training worker of a policy's critic."""

    @on_all
    def load_checkpoint(self, local_path: str, *others: Passed, **named: Passed) -> None:
        refuse_damaged(Path(local_path), self.rank)
        super().load_checkpoint(local_path, *others, **named)


def refuse_damaged(folder: Path, rank: int) -> None:
    """Verify the checksums of a rank's files. torch does not verify them when it loads the files."""
    if names := damaged(folder, f"*_rank_{rank}.pt"):
        raise ValueError(f"the checksums of {', '.join(names)} are wrong: their bytes have changed")


def counting(collect: Collect, module: nn.Module, policy: str) -> Collect:
    """Wrap `collect`, the method of verl's training engine that returns the weights as a stream of tensors.

    A stream that lacks tensors then ends with an error.
    """

    def counted(*, base_sync_done: bool = False, **kwargs: object) -> tuple[Weights, Fields | None]:
        weights, peft_config = collect(base_sync_done=base_sync_done, **kwargs)
        adapter = peft_config is not None and base_sync_done
        return whole(weights, tensors_of(module, adapter=adapter), policy), peft_config

    return counted


def tensors_of(module: nn.Module, *, adapter: bool) -> int:
    """Count the tensors of a model's adapter, or of its other weights. Tied tensors count once."""
    parameters = [each for name, each in module.named_parameters() if (LORA in name) is adapter]
    # FSDP1 flattens several tensors into one parameter, and keeps their names in `_fqns`.
    return sum(len(getattr(each, "_fqns", [None])) for each in parameters)


def whole(weights: Weights, least: int, policy: str) -> Iterator[tuple[str, Tensor]]:
    """Yield the tensors unchanged. Raises UpdateFailed at the end if there were fewer than `least`."""
    count = 0
    for named in weights:
        count += 1
        yield named
    if count < least:
        raise UpdateFailed(
            f"{count} of {least} tensors of policy {policy} were sent to its engines\n"
            "  rule: a push has every tensor that the policy trains; with fewer, engines sample with other weights\n"
            "  fix:  pip install 'peft<0.21', with which verl finds the tensors of an adapter; if weights are whole, "
            "install the versions of versions/constraints.txt"
        )
