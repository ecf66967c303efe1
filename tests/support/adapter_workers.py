"""Workers of a base with adapters, and verl's own worker with LoRA beside them, in plain processes, without Ray.

Run as a program, this file writes what it finds with one and with two workers into a folder. It imports verl once, and
forks the workers.
"""

from __future__ import annotations

import copy
import multiprocessing
import os
import random
import socket
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from omegaconf import DictConfig, OmegaConf
from tensordict import TensorDict
from training_workers import batch, fields

from verl_mas.config.adapters import ADAPTER, Adapter, write_table
from verl_mas.config.compose import compose

if TYPE_CHECKING:
    from verl_mas.trainer.adapters.worker import AdapterWorker

STEPS, ROWS, UPDATES = 3, 8, 2
TIME_LIMIT_S = 600
ACTOR, MODEL = "actor_rollout_ref.actor", "actor_rollout_ref.model"
# `layers` is also the name of a module.
POLICIES: dict[str, dict[str, Any]] = {
    "layers": {"lr": 1e-2, "lr_scheduler_type": "cosine", "clip_grad": 0.05},
    "solver": {"lr": 3e-3, "lr_warmup_steps": 2, "clip_grad": 1.0, "weight_decay": 0.1},
}
RANKS, ALPHAS = {"layers": 4, "solver": 2}, {"layers": 8.0, "solver": 6.0}
VARIANTS = {
    "tied": ("tied", f"{ACTOR}.use_dynamic_bsz=false", f"{ACTOR}.ppo_micro_batch_size_per_gpu=1"),
    "untied": ("untied", f"{MODEL}.use_remove_padding=true", f"{ACTOR}.ppo_max_token_len_per_gpu=64"),
}
BFLOAT16 = (f"{ACTOR}.fsdp_config.model_dtype=bf16", f"{ACTOR}.fsdp_config.mixed_precision.param_dtype=bf16")


@dataclass
class Found:
    """What the first worker saw. Weights are by policy, whole, by PEFT's names."""

    together: dict[str, dict[str, torch.Tensor]]
    alone: dict[str, dict[str, torch.Tensor]]
    resumed: dict[str, dict[str, torch.Tensor]]
    disturbed: list[str]
    grad_norms: dict[str, list[float]]
    metrics: dict[str, dict[str, list[float]]]


def models(folder: Path) -> None:
    from transformers import AutoTokenizer, Qwen2Config, Qwen2ForCausalLM

    from verl_mas.warmup.tiny_model import tiny_model

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
    made = {}
    for number, (policy, optim) in enumerate(POLICIES.items()):
        actor = OmegaConf.to_container(OmegaConf.merge(view.actor_rollout_ref.actor, {"optim": optim}))
        assert isinstance(actor, dict)
        made[policy] = Adapter(policy, RANKS[policy], ALPHAS[policy], seed + number, actor=actor)  # type: ignore[arg-type]
    return made


def worker_of_base(view: DictConfig, adapters: Mapping[str, Adapter]) -> AdapterWorker:
    from verl_mas.trainer.adapters.worker import AdapterWorker

    view = copy.deepcopy(view)
    write_table(view, adapters)
    worker = AdapterWorker(config=view.actor_rollout_ref, role="actor")
    worker.init_model()
    return worker


def worker_alone(view: DictConfig, one: Adapter, start: Path) -> Any:
    """verl's own, with one adapter that starts from a folder."""
    from verl.workers.engine_workers import ActorRolloutRefWorker

    own = copy.deepcopy(view.actor_rollout_ref)
    OmegaConf.set_struct(own, False)
    own.actor = one.actor
    own.model.lora_rank, own.model.lora_alpha, own.model.lora_adapter_path = one.rank, one.alpha, str(start)
    worker = ActorRolloutRefWorker(config=own, role="actor")
    worker.init_model()
    return worker


def rows(policy: str, step: int) -> TensorDict:
    """This worker's part."""
    world, rank = torch.distributed.get_world_size(), torch.distributed.get_rank()
    part = ROWS // world
    return batch([_row(f"{policy}/{step}/{number}") for number in range(rank * part, (rank + 1) * part)])


def _row(name: str) -> dict[str, torch.Tensor]:
    drawn = random.Random(name)
    prompt = [drawn.randrange(3, 200) for _ in range(drawn.randrange(2, 20))]
    reply = [drawn.randrange(3, 200) for _ in range(drawn.randrange(1, 30))]
    return fields(prompt, reply, 1, drawn.uniform(-2, 2), 1.0)


def log_probs(worker: Any, data: TensorDict, **info: object) -> torch.Tensor:
    from verl.utils import tensordict_utils as tu

    tu.assign_non_tensor(data, calculate_entropy=False, compute_loss=False, **info)
    return worker.compute_log_prob(data)["log_probs"].values()


def update(worker: Any, data: TensorDict, **info: object) -> dict[str, list[float]]:
    from verl.utils import tensordict_utils as tu

    tu.assign_non_tensor(data, calculate_entropy=True, global_batch_size=ROWS / UPDATES, num_mini_batch=UPDATES)
    tu.assign_non_tensor(data, distillation_use_topk=False, distillation_only=False, epochs=1, seed=1, **info)
    return tu.get(worker.update_actor(data), "metrics")


def weights(engine: Any) -> dict[str, torch.Tensor]:
    """Of verl's own adapter."""
    from verl_mas.trainer.adapters.shards import whole

    named = engine.module.named_parameters()
    return {key.replace(".default.", "."): whole(value) for key, value in named if ".default." in key}


def state(engine: Any) -> Iterator[tuple[str, str, object]]:
    """All that training could change, this worker's part: (policy or "base", name, value)."""
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
    return torch.equal(one, other) if isinstance(one, torch.Tensor) else one == other


def train(worker: AdapterWorker, steps: range, found: Found | None = None, save: Path | None = None) -> None:
    """Each step scores with the reference, then updates, for one policy after the other."""
    engine = worker.actor.engine
    for step in steps:
        for policy in worker.adapters:
            before = list(state(engine)) if found else []
            log_probs(worker, rows(policy, step), **{ADAPTER: policy, "no_lora_adapter": True})
            metrics = update(worker, rows(policy, step), **{ADAPTER: policy})
            if found:
                found.grad_norms[policy] += metrics["grad_norm"]
                found.metrics[policy] = metrics
                after = {(owner, name): value for owner, name, value in state(engine)}
                found.disturbed += [
                    f"{owner}: {name}, by {policy}"
                    for owner, name, value in before
                    if owner != policy and not same(value, after[owner, name])
                ]
        if save and step == 1:
            for policy in worker.adapters:
                worker.save_adapter(policy, str(save / policy))


def whole_state(worker: AdapterWorker) -> dict[str, dict[str, torch.Tensor]]:
    """Weights and what the optimisers keep."""
    from verl_mas.trainer.adapters.shards import optimizer_state, whole

    engine, found = worker.actor.engine, {}
    for policy, parameters in engine.parameters.items():
        found[policy] = {key: whole(parameter) for key, parameter in parameters.items()}
        kept = optimizer_state(engine.training[policy].optimizer, parameters)
        found[policy] |= {f"{name} of {key}": value for key, own in kept.items() for name, value in own.items()}
    return found


def observe(folder: Path, model: str, view: DictConfig) -> Found:
    adapters = table(view)
    worker = worker_of_base(view, adapters)
    found = Found({}, {}, {}, [], {policy: [] for policy in adapters}, {})
    for policy in adapters:
        worker.save_adapter(policy, str(folder / "start" / policy))
    train(worker, range(STEPS), found, folder / "after_2")
    found.together = whole_state(worker)
    for policy, one in adapters.items():
        alone = worker_alone(view, one, folder / "start" / policy)
        for step in range(STEPS):
            update(alone, rows(policy, step))
        found.alone[policy] = weights(alone.actor.engine)
    resumed = worker_of_base(view, table(view, seed=100))
    for policy in adapters:
        resumed.load_adapter(policy, str(folder / "after_2" / policy))
    train(resumed, range(2, STEPS))
    found.resumed = whole_state(resumed)
    return found


def main(folder: Path) -> None:
    models(folder)
    import verl.workers.engine_workers  # noqa: F401  before the fork

    import verl_mas.trainer.adapters.worker  # noqa: F401

    views = {name: section(folder / model, *settings) for name, (model, *settings) in VARIANTS.items()}
    for workers in (1, 2):
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        started = [
            multiprocessing.get_context("fork").Process(target=_one_worker, args=(folder, views, rank, workers, port))
            for rank in range(workers)
        ]
        for process in started:
            process.start()
        for process in started:
            process.join(TIME_LIMIT_S)
            process.kill()
        assert not any(process.exitcode for process in started)


def _one_worker(folder: Path, views: Mapping[str, DictConfig], rank: int, workers: int, port: int) -> None:
    os.environ |= {"RANK": str(rank), "WORLD_SIZE": str(workers), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    for name, view in views.items():
        found = observe(folder / str(workers) / name, name, view)
        if rank == 0:
            torch.save(found.__dict__, folder / f"{name}_{workers}.pt")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
