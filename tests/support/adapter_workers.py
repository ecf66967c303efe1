"""Workers of a base with adapters, and verl's own worker with LoRA to compare with, in plain processes without Ray.

Run as a program, this file writes what it finds with one and with two workers into a folder. It imports verl once, and
forks the workers.
"""

from __future__ import annotations

import copy
import gc
import os
import random
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import torch
from omegaconf import DictConfig, OmegaConf
from ray_start import free_port
from tensordict import TensorDict
from torch.multiprocessing.spawn import start_processes
from training_workers import batch, fields

from verl_mas.config.adapters import ADAPTER, Adapter, Targets, write_table
from verl_mas.config.compose import compose
from verl_mas.errors import InvalidInput

if TYPE_CHECKING:
    from verl_mas.trainer.adapters.engine import AdapterWorker

State: TypeAlias = dict[str, torch.Tensor]
STEPS, ROWS = 3, 4
ACTOR, MODEL = "actor_rollout_ref.actor", "actor_rollout_ref.model"
# `layers` is also the name of a module.
POLICIES: dict[str, dict[str, Any]] = {
    "layers": {"lr": 1e-2, "lr_scheduler_type": "cosine", "clip_grad": 0.05},
    "solver": {"lr": 3e-3, "lr_warmup_steps": 2, "clip_grad": 1.0, "weight_decay": 0.1},
}
RANKS, ALPHAS = {"layers": 4, "solver": 2}, {"layers": 8.0, "solver": 6.0}
# For the variant `untied`: each of the two adapters is on modules that the other adapter is not on.
TARGETS: dict[str, Targets] = {"layers": "all-linear", "solver": ["q_proj", "down_proj"]}
EXCLUDED: dict[str, Targets] = {"layers": ["down_proj", "o_proj"], "solver": None}
VARIANTS = {
    "tied": ("tied", f"{ACTOR}.use_dynamic_bsz=false", f"{ACTOR}.ppo_micro_batch_size_per_gpu=1"),
    "untied": ("untied", f"{MODEL}.use_remove_padding=true", f"{ACTOR}.ppo_max_token_len_per_gpu=64"),
}
BFLOAT16 = (f"{ACTOR}.fsdp_config.model_dtype=bf16", f"{ACTOR}.fsdp_config.mixed_precision.param_dtype=bf16")


@dataclass
class Found:
    """Results of the first worker. The state of a policy has its weights by PEFT's names, and its optimiser's
    tensors."""

    together: dict[str, State] = field(default_factory=dict)
    alone: dict[str, State] = field(default_factory=dict)
    resumed: dict[str, State] = field(default_factory=dict)
    disturbed: list[str] = field(default_factory=list)  # what changed while another policy was updated
    metrics: dict[str, list[dict[str, list[float]]]] = field(default_factory=dict)
    # Each trainable parameter -> the policies whose optimisers have it.
    trainable: dict[str, list[str]] = field(default_factory=dict)
    # Log-probs of the same rows: by the bare base before and after all training, then by an adapter.
    reference: list[torch.Tensor] = field(default_factory=list)
    sent: dict[str, torch.Tensor] = field(default_factory=dict)
    warm: State = field(default_factory=dict)  # of solver, with `path`
    # Random numbers of a worker after a checkpoint was saved, and after it was loaded.
    drawn: list[torch.Tensor] = field(default_factory=list)


@dataclass
class Bfloat16:
    """Results of an engine with a base in bfloat16 whose first forward pass was one of the reference."""

    types: dict[str, set[torch.dtype]]
    before: State
    after: State
    grad_norm: float


def models(folder: Path) -> None:
    from transformers import AutoTokenizer, Qwen2Config, Qwen2ForCausalLM

    from verl_mas.testing.tiny_model import tiny_model

    tiny_model(folder / "tied", hidden=16, layers=2)
    config = Qwen2Config.from_pretrained(folder / "tied", tie_word_embeddings=False)
    torch.manual_seed(0)
    Qwen2ForCausalLM(config).save_pretrained(folder / "untied")
    AutoTokenizer.from_pretrained(folder / "tied").save_pretrained(folder / "untied")


def section(model: Path, *settings: str) -> DictConfig:
    view = compose(
        [
            *("+platform=cpu", "+recipe=first_run/laptop", f"{MODEL}.path={model}"),
            *(f"{ACTOR}.optim.total_training_steps=6", f"{ACTOR}.entropy_coeff=0.01"),
            *("actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu=2",),
            *(f"{MODEL}.enable_gradient_checkpointing=true", *settings),
        ]
    )
    OmegaConf.resolve(view)
    return view


def table(view: DictConfig, seed: int = 0) -> dict[str, Adapter]:
    made, tied = {}, Path(view.actor_rollout_ref.model.path).name == "tied"
    for number, (policy, optim) in enumerate(POLICIES.items()):
        actor = OmegaConf.to_container(OmegaConf.merge(view.actor_rollout_ref.actor, {"optim": optim}))
        assert isinstance(actor, dict)
        one = Adapter(policy, RANKS[policy], ALPHAS[policy], seed + number, actor=actor)  # type: ignore[arg-type]
        if not tied:
            one = replace(one, target_modules=TARGETS[policy], exclude_modules=EXCLUDED[policy])
        made[policy] = one
    return made


def worker_of_base(view: DictConfig, adapters: Mapping[str, Adapter]) -> AdapterWorker:
    from verl_mas.trainer.adapters.engine import AdapterWorker

    view = copy.deepcopy(view)
    write_table(view, adapters)
    worker = AdapterWorker(config=view.actor_rollout_ref, role="actor")
    worker.init_model()
    return worker


def worker_alone(view: DictConfig, one: Adapter, start: Path) -> Any:
    """Start verl's own worker with one adapter, loaded from a folder."""
    from verl.workers.engine_workers import ActorRolloutRefWorker

    own = copy.deepcopy(view.actor_rollout_ref)
    OmegaConf.set_struct(own, False)
    own.actor = one.actor
    own.model.lora_rank, own.model.lora_alpha, own.model.lora_adapter_path = one.rank, one.alpha, str(start)
    own.model.target_modules, own.model.exclude_modules = one.target_modules, one.exclude_modules
    worker = ActorRolloutRefWorker(config=own, role="actor")
    worker.init_model()
    return worker


def rows(policy: str, step: int) -> TensorDict:
    """Make this worker's share of a step's rows."""
    world, rank = torch.distributed.get_world_size(), torch.distributed.get_rank()
    part = ROWS // world
    return batch([_row(f"{policy}/{step}/{number}") for number in range(rank * part, (rank + 1) * part)])


def _row(name: str) -> dict[str, torch.Tensor]:
    drawn = random.Random(name)
    prompt = [drawn.randrange(3, 200) for _ in range(drawn.randrange(2, 20))]
    reply = [drawn.randrange(3, 200) for _ in range(drawn.randrange(1, 30))]
    made: dict[str, torch.Tensor] = fields(prompt, reply, 1, drawn.uniform(-2, 2), 1.0)
    return made


def log_probs(worker: Any, data: TensorDict, **info: object) -> torch.Tensor:
    from verl.utils import tensordict_utils as tu

    tu.assign_non_tensor(data, calculate_entropy=False, compute_loss=False, **info)
    scored: torch.Tensor = worker.compute_log_prob(data)["log_probs"].values()
    return scored


def update(worker: Any, data: TensorDict, **info: object) -> dict[str, list[float]]:
    from verl.utils import tensordict_utils as tu

    tu.assign_non_tensor(data, calculate_entropy=True, global_batch_size=ROWS, num_mini_batch=1)
    tu.assign_non_tensor(data, distillation_use_topk=False, distillation_only=False, epochs=1, seed=1, **info)
    metrics: dict[str, list[float]] = tu.get(worker.update_actor(data), "metrics")
    return metrics


def weights(engine: Any) -> dict[str, torch.Tensor]:
    """Return the weights of verl's own adapter."""
    from verl_mas.trainer.adapters.engine import whole

    named = engine.module.named_parameters()
    own: State = {key.replace(".default.", "."): whole(value) for key, value in named if ".default." in key}
    return own


def state(engine: Any) -> Iterator[tuple[str, str, object]]:
    """Yield this worker's share of everything that training could change: (policy or "base", name, value)."""
    owned = set()
    for policy, training in engine.training.items():
        for key, parameter in engine.parameters[policy].items():
            owned.add(id(parameter))
            yield policy, key, parameter.to_local().clone()
            for name, value in training.optimizer.state.get(parameter, {}).items():
                yield policy, f"{name} of {key}", getattr(value, "to_local", value.clone)().clone()
        yield policy, "schedule", copy.deepcopy(training.lr_scheduler.state_dict())
        yield policy, "rate", training.optimizer.param_groups[0]["lr"]
    engine.module.reshard()
    for key, parameter in engine.module.named_parameters():
        if id(parameter) not in owned:
            yield "base", key, parameter.to_local().clone()


def same(one: object, other: object) -> bool:
    return (
        torch.equal(one, other) if isinstance(one, torch.Tensor) and isinstance(other, torch.Tensor) else one == other
    )


def train(worker: AdapterWorker, steps: range, found: Found | None = None) -> None:
    """Update one policy after the other in each step. Before the first step, score all rows with the reference."""
    engine = worker.actor.engine
    for step in steps:
        for policy in worker.adapters if step == 0 else ():
            log_probs(worker, rows(policy, step), **{ADAPTER: policy, "no_lora_adapter": True})
        for policy in worker.adapters:
            before = list(state(engine)) if found else []
            metrics = update(worker, rows(policy, step), **{ADAPTER: policy})
            if found:
                found.metrics.setdefault(policy, []).append(metrics)
                after = {(owner, name): value for owner, name, value in state(engine)}
                found.disturbed += [
                    f"{owner}: {name}, by {policy}"
                    for owner, name, value in before
                    if owner != policy and not same(value, after[owner, name])
                ]


def whole_state(worker: AdapterWorker, policy: str) -> State:
    from verl_mas.trainer.adapters.engine import optimizer_state, whole

    engine = worker.actor.engine
    parameters = engine.parameters[policy]
    found = {key: whole(parameter) for key, parameter in parameters.items()}
    kept = optimizer_state(engine.training[policy].optimizer, parameters)
    values = {f"{name} of {key}": value for key, own in kept.items() for name, value in own.items()}
    return found | {name: value for name, value in values.items() if isinstance(value, torch.Tensor)}


def trainable(engine: Any) -> dict[str, list[str]]:
    owners = {
        policy: {id(parameter) for group in training.optimizer.param_groups for parameter in group["params"]}
        for policy, training in engine.training.items()
    }
    return {
        key: [policy for policy, own in owners.items() if id(parameter) in own]
        for key, parameter in engine.module.named_parameters()
        if parameter.requires_grad
    }


def observe(folder: Path, view: DictConfig) -> Found:
    adapters, found = table(view), Found()
    worker = worker_of_base(view, adapters)
    found.trainable = trainable(worker.actor.engine)
    for policy in adapters:
        worker.save_adapter(policy, str(folder / "start" / policy))
    found.reference.append(log_probs(worker, rows("layers", 0)))
    train(worker, range(2), found)
    for policy in adapters:
        worker.save_adapter(policy, str(folder / "after_2" / policy))
    train(worker, range(2, STEPS), found)
    found.together = {policy: whole_state(worker, policy) for policy in adapters}
    found.reference += [log_probs(worker, rows("layers", 0)), log_probs(worker, rows("layers", 0), adapter="layers")]
    stream, _ = worker.actor.engine.get_per_tensor_param(base_sync_done=True)
    found.sent = dict(stream)
    for policy, one in adapters.items():
        alone = worker_alone(view, one, folder / "start" / policy)
        for step in range(STEPS):
            update(alone, rows(policy, step))
        found.alone[policy] = weights(alone.actor.engine)
    other = table(view, seed=100)
    resumed = worker_of_base(
        view, other | {"solver": replace(other["solver"], path=str(folder / "after_2" / "solver"))}
    )
    found.warm = whole_state(resumed, "solver")
    for move in (resumed.save_checkpoint, resumed.load_checkpoint):
        move(str(folder / "base"))
        found.drawn.append(torch.rand(3))
    # Two workers load the adapters that one worker saved, and save them again.
    for policy in adapters:
        resumed.load_adapter(policy, str(folder.parent.parent / "1" / folder.name / "after_2" / policy))
        resumed.save_adapter(policy, str(folder / "copied" / policy))
    for policy in adapters:
        resumed.load_adapter(policy, str(folder / "after_2" / policy))
    train(resumed, range(2, STEPS))
    found.resumed = {policy: whole_state(resumed, policy) for policy in adapters}
    # A step in which only one policy has rows.
    for moment in ("before", "after"):
        for policy in adapters:
            resumed.save_adapter(policy, str(folder / moment / policy))
        if moment == "before":
            log_probs(resumed, rows("layers", STEPS), adapter="layers")
            update(resumed, rows("layers", STEPS), adapter="layers")
    return found


def observe_bfloat16(view: DictConfig) -> Bfloat16:
    """Train one adapter on a base in bfloat16."""
    solver = {"solver": table(view)["solver"]}
    worker = worker_of_base(view, solver)
    before = whole_state(worker, "solver")
    log_probs(worker, rows("solver", 0))
    # The learning rate of the first step is 0.
    metrics = [update(worker, rows("solver", step), adapter="solver") for step in range(2)]
    engine = worker.actor.engine
    types: dict[str, set[torch.dtype]] = {}
    for owner, _, value in state(engine):
        if isinstance(value, torch.Tensor):
            types.setdefault(owner, set()).add(value.dtype)
    return Bfloat16(types, before, whole_state(worker, "solver"), metrics[0]["grad_norm"][0])


def refused(folder: Path, view: DictConfig) -> str:
    """Return the error of loading an adapter of another rank."""
    try:
        worker_of_base(view, table(view)).load_adapter("solver", str(folder / "start/layers"))
    except InvalidInput as error:
        return str(error)
    return "nothing"


def observed(folder: Path, variant: str) -> None:
    """Start this file as a program."""
    environment = os.environ | {"VERL_PLATFORM": "cpu", "OMP_NUM_THREADS": "1"}
    command = [sys.executable, __file__, str(folder), variant]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, (done.stdout + done.stderr)[-6000:]


def main(folder: Path, variant: str) -> None:
    models(folder)
    import verl.workers.engine_workers  # noqa: F401  before the fork

    import verl_mas.trainer.adapters.engine  # noqa: F401

    model, *settings = VARIANTS[variant]
    view = section(folder / model, *settings)
    # verl collects garbage whenever it builds a worker.
    gc.freeze()
    for workers in (1, 2):
        arguments = (folder, variant, view, workers, free_port())
        start_processes(_one_worker, arguments, workers, start_method="fork")


def _one_worker(rank: int, folder: Path, variant: str, view: DictConfig, workers: int, port: str) -> None:
    os.environ |= {"RANK": str(rank), "WORLD_SIZE": str(workers), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    found = observe(folder / str(workers) / variant, view)
    if rank == 0:
        torch.save(found, folder / f"{variant}_{workers}.pt")
    if workers == 1 and variant == "tied":
        (folder / "refused.txt").write_text(refused(folder / "1/tied", view))
        bfloat16 = section(folder / "tied", *VARIANTS["tied"][1:], *BFLOAT16)
        torch.save(observe_bfloat16(bfloat16), folder / "bfloat16.pt")


if __name__ == "__main__":
    # Import this file as a module, so that its pickled classes have the names that the tests import.
    import adapter_workers

    adapter_workers.main(Path(sys.argv[1]), sys.argv[2])
