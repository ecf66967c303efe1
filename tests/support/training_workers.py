"""verl's training worker in plain processes, without Ray: what it scores and how it updates, by settings.

`updates(model, variants)` starts the processes; run as a program, this file is one of them.
"""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypedDict

import torch
from tensordict import TensorDict

if TYPE_CHECKING:
    from verl.workers.engine import BaseEngine

ACTOR, ROLLOUT, MODEL = "actor_rollout_ref.actor", "actor_rollout_ref.rollout", "actor_rollout_ref.model"
ROWS, UPDATES = 7, 2
PADDING_TOKENS = 128  # length of verl's padding rows


class Updated(TypedDict):
    """The log-probs of the real rows' trained tokens before the update, and the weights after it."""

    log_probs: list[torch.Tensor]  # of the first worker
    weights: dict[str, torch.Tensor]
    metrics: dict[str, list[float]]
    trees: int  # micro batches in which shared prefixes were computed once
    work: float  # estimated work per token


@dataclass(frozen=True)
class Variant:
    """`shared`: mas.shared_prefixes; None: not set. `temperatures` of the rows, in turn."""

    settings: Sequence[str]
    shared: bool | None = None
    temperatures: Sequence[float] = (1.0,)


def updates(model: Path, variants: Mapping[str, Variant], workers: int = 1) -> dict[str, Updated]:
    """Run one training step of each variant on the same rows and weights, with `workers` processes."""
    path = os.pathsep.join([str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")])
    environment = os.environ | {"VERL_PLATFORM": "cpu", "OMP_NUM_THREADS": "1", "PYTHONPATH": path}
    start = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={workers}", __file__]
    with tempfile.TemporaryDirectory() as folder:
        asked = {name: vars(variant) for name, variant in variants.items()}
        Path(folder, "variants.json").write_text(json.dumps(asked))
        command = [*start, str(model), folder]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=600, check=False)
        assert done.returncode == 0, (done.stdout + done.stderr)[-6000:]
        return {name: torch.load(Path(folder, f"{name}.pt"), weights_only=False) for name in variants}


def main(model: str, folder: str) -> None:
    asked = json.loads(Path(folder, "variants.json").read_text())
    for name, variant in asked.items():
        done = _step(model, Variant(**variant))
        if os.environ["RANK"] == "0":
            torch.save(done, Path(folder, f"{name}.pt"))


def _step(model: str, variant: Variant) -> Updated:
    from omegaconf import OmegaConf
    from verl.utils import tensordict_utils as tu

    from verl_mas.config.compose import compose
    from verl_mas.trainer.batching import fixed_sizes, plan, spread_padding
    from verl_mas.trainer.policies.worker import PolicyWorker

    # Adam turns the rounding of a gradient near zero into a whole step. SGD does not.
    sgd = (f"{ACTOR}.optim.optimizer=SGD", f"{ACTOR}.optim.lr=0.5")
    composed = compose(["+platform=cpu", "+recipe=first_run/laptop", f"{MODEL}.path={model}", *sgd, *variant.settings])
    section, temperatures = composed.actor_rollout_ref, variant.temperatures
    OmegaConf.update(section, "rollout.custom", {"shared_prefixes": variant.shared}, force_add=True)
    torch.manual_seed(0)  # of the first weights of LoRA
    worker = PolicyWorker(config=section, role="actor")
    worker.init_model()
    assert worker.actor is not None
    engine: Any = worker.actor.engine
    trees: list[bool] = []
    engine.prepare_model_inputs = _counted(engine.prepare_model_inputs, trees)
    ranks, rank = engine.get_data_parallel_size(), engine.get_data_parallel_rank()
    made = plan(ROWS, UPDATES, ranks, *fixed_sizes(section, reference=False))
    padded = ROWS - ROWS % -made.multiple
    order = spread_padding([{"is_padding": i >= ROWS} for i in range(padded)], ranks, made.updates)
    chunk = len(order) // ranks
    mine = order[rank * chunk : (rank + 1) * chunk]
    data = batch([row(i, temperatures[i % len(temperatures)]) for i in mine])
    scored = data.copy()
    tu.assign_non_tensor(scored, calculate_entropy=False, compute_loss=False)
    log_probs = dict(zip(mine, worker.compute_log_prob(scored)["log_probs"].unbind(), strict=True))
    tu.assign_non_tensor(data, calculate_entropy=True, global_batch_size=ROWS / UPDATES, num_mini_batch=UPDATES)
    tu.assign_non_tensor(data, distillation_use_topk=False, distillation_only=False, epochs=1, seed=1)
    metrics = tu.get(worker.update_actor(data), "metrics")
    return Updated(
        log_probs=[_trained(log_probs[i], row(i, 1.0)["response_mask"]) for i in range(ROWS) if i in log_probs],
        weights=_weights(engine),
        metrics=metrics,
        trees=sum(trees),
        work=engine._work.token,  # noqa: SLF001
    )


def _counted(prepare: Callable[..., Any], trees: list[bool]) -> Callable[..., Any]:
    def counted(micro_batch: TensorDict) -> Any:
        inputs, arguments = prepare(micro_batch)
        trees.append("tree" in arguments)
        return inputs, arguments

    return counted


def _trained(log_probs: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """Return the positions that predict the trained tokens: each is one token earlier."""
    return log_probs[-len(mask) - 1 : -1][mask.bool()]


def batch(rows: Sequence[Mapping[str, torch.Tensor]]) -> TensorDict:
    return TensorDict({name: _column([row[name] for row in rows]) for name in rows[0]}, batch_size=len(rows))


def _weights(engine: BaseEngine) -> dict[str, torch.Tensor]:
    """Return the weights that verl sends to an inference engine."""
    named, _ = engine.get_per_tensor_param()
    return {name: tensor.detach().clone() for name, tensor in named}


def row(number: int, temperature: float) -> dict[str, torch.Tensor]:
    """Make a random row; the same number always gives the same row. Numbers from ROWS on give verl's padding rows.
    Every other row is a conversation, in which some tokens of the reply are not trained. Some rows share a first
    turn."""
    if number >= ROWS:
        return fields([1] * (PADDING_TOKENS - 1), [1], 0, 0.0, temperature)
    group, drawn = random.Random(f"group {number // 3}"), random.Random(number)
    prompt = [group.randrange(3, 200) for _ in range(group.randrange(8, 20))]
    turn = [group.randrange(3, 200) for _ in range(6)] if number % 2 else []
    reply = turn + [drawn.randrange(3, 200) for _ in range(drawn.randrange(1, 30))]
    made = fields(prompt, reply, 1, drawn.uniform(-2, 2), temperature)
    for name in ("response_mask", "loss_mask"):
        made[name][4:6] = int(not turn)
    return made


def fields(
    prompt: list[int], reply: list[int], mask: int, advantage: float, temperature: float
) -> dict[str, torch.Tensor]:
    every = torch.ones(len(reply))
    return {
        "prompts": torch.tensor(prompt),
        "responses": torch.tensor(reply),
        "input_ids": torch.tensor(prompt + reply),
        "position_ids": torch.arange(len(prompt) + len(reply)),
        "attention_mask": torch.ones(len(prompt) + len(reply), dtype=torch.int64),
        "response_mask": every.long() * mask,
        "loss_mask": every.long() * mask,
        "advantages": every * advantage,
        "old_log_probs": every * -5.5,
        "temperature": torch.tensor(temperature),
    }


def _column(values: list[torch.Tensor]) -> torch.Tensor:
    return torch.nested.as_nested_tensor(values, layout=torch.jagged) if values[0].dim() else torch.stack(values)


if __name__ == "__main__":
    main(*sys.argv[1:])
