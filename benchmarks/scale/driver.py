"""Measure the driver's time per row of a training step, from the submission of tasks to the metrics.

    python -m benchmarks.scale.driver [--rows 1k,4k,16k] [--policies 8] [--ranks 16] [--tokens 16]

The trainer's step, verl's replay buffer, balancing, log-probs and metrics are real, and so is TransferQueue, which runs
in separate processes. There are no engines and no workers: this process writes the rows of the agent-loop workers and
of the training workers into TransferQueue, and counts the time as theirs. Replies have 1 to `--tokens` tokens, and
prompts have 8.
"""

from __future__ import annotations

import argparse
import tempfile
from collections import defaultdict
from collections.abc import Iterator
from contextlib import ExitStack
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
import transfer_queue as tq
from omegaconf import open_dict
from tensordict import NonTensorStack, TensorDict
from torch import Tensor
from verl.trainer.ppo.v1.replay_buffer import ReplayBuffer
from verl.trainer.ppo.v1.trainer_base import PPOTrainer

from benchmarks.scale.curve import Owners, memory, ratio, show, sizes
from benchmarks.scale.queue import queue
from benchmarks.scale.team import composed, tags_of
from verl_mas.config.run import Run
from verl_mas.rollout.counts import SessionCounts
from verl_mas.rollout.manager import MasAgentLoopManager
from verl_mas.rollout.worker import ATTEMPT
from verl_mas.trainer.filters import TaskFilter
from verl_mas.trainer.metrics import Agreement
from verl_mas.trainer.modes.sync import MasTrainer
from verl_mas.trainer.policies import policy_trainer
from verl_mas.trainer.policies.local_policy import Workers
from verl_mas.trainer.policies.policy_trainer import PolicyTrainer
from verl_mas.trainer.pools.pools import Pools
from verl_mas.trainer.step import Credit
from verl_mas.trainer.trainer import TeamTrainer
from verl_mas.verl_ import data_plane, row
from verl_mas.verl_.data_plane import Rows
from verl_mas.verl_.row import RowKey
from verl_mas.workflow.base import agents_of

GROUP = 16  # rows of a task: eight sessions of two acts
PROMPT = 8
PUT = 4096  # rows that the stand-in of the workers writes at once
OURS, VERLS, WORKERS, QUEUES = "verl_mas", "verl", "workers", "TransferQueue for {}"
DRIVER = (OURS, VERLS, QUEUES.format(OURS), QUEUES.format(VERLS))
# Owner -> functions whose time counts for this owner. In nested calls the innermost one decides; other time is ours.
WATCHED: dict[str, list[tuple[Any, str]]] = {
    QUEUES: [(tq, name) for name in ("kv_batch_put", "kv_batch_get", "kv_clear", "kv_list")],
    OURS: [(TeamTrainer, "_step_once")],
    VERLS: [
        (PPOTrainer, "step"),
        (ReplayBuffer, "sample"),
        (PPOTrainer, "_next_train_batch"),
        (PPOTrainer, "_balance_batch"),
        (PPOTrainer, "_compute_old_log_prob"),
        (PPOTrainer, "_compute_metrics"),
        (policy_trainer, "compute_rollout_correction_and_add_to_batch"),
    ],
}


def nested(rows: list[Tensor]) -> Tensor:
    return torch.nested.as_nested_tensor(rows, layout=torch.jagged)


class Sessions(MasAgentLoopManager):
    """A stand-in for the agent-loop workers. It writes the finished rows of all tasks when a step submits them."""

    def __init__(self, run: Run, folder: str, owners: Owners, tokens: int):
        self.run, self.owners, self.rng = run, owners, np.random.default_rng(0)
        self.tokens, self.tasks = tokens, 0
        self.config, self._spec = run.config, run.mas.trajectories
        with open_dict(self.config):
            self.config.trainer.default_local_dir, self.config[ATTEMPT] = folder, "1"

    def generate_sequences(self, prompts: TensorDict) -> None:
        with self.owners.of(WORKERS):
            uids = list(prompts[row.UID])
            self.tasks = len(uids)
            keys = [str(RowKey(uid, i // 2, i % 2)) for uid in uids for i in range(GROUP)]
            for begin in range(0, len(keys), PUT):
                self._write(keys[begin : begin + PUT], begin)
            done = {row.STATUS: row.FINISHED, row.IS_PROMPT: True, row.GLOBAL_STEPS: 1}
            tq.kv_batch_put(keys=uids, partition_id=data_plane.TRAIN, tags=[dict(done) for _ in uids])

    def _write(self, keys: list[str], begin: int) -> None:
        lengths = self.rng.integers(1, self.tokens + 1, len(keys)).tolist()
        replies = [torch.ones(length, dtype=torch.int64) for length in lengths]
        scores = [torch.zeros(length) for length in lengths]
        for number, score in enumerate(scores):
            score[-1] = float((begin + number) // 2 % 2)
        fields = {
            row.PROMPTS: torch.ones(len(keys), PROMPT, dtype=torch.int64),
            row.RESPONSES: nested(replies),
            row.RESPONSE_MASK: nested(replies),
            row.SCORES: nested(scores),
            row.ROLLOUT_LOG_PROBS: nested([torch.full((length,), -0.5) for length in lengths]),
            row.NUM_TURNS: NonTensorStack(*([2] * len(keys))),
        }
        policies = len(self.run.mas.policies)
        tags = [tags_of(begin + i, length, policies, PROMPT) for i, length in enumerate(lengths)]
        batch = TensorDict(fields, batch_size=len(keys))
        tq.kv_batch_put(keys=keys, partition_id=data_plane.TRAIN, fields=batch, tags=tags)

    def pop_counts(self, validate: bool = False) -> SessionCounts:
        return SessionCounts(sessions=8 * self.tasks, acts=GROUP * self.tasks, tasks=self.tasks)


class Group:
    """A stand-in for the training workers of a policy. It writes log-probs and counts updates."""

    def __init__(self, ranks: int, owners: Owners):
        self._dispatch_info = {"actor": list(range(ranks))}
        self.owners, self.updates = owners, 0

    def compute_log_prob(self, rows: Rows) -> Rows:
        with self.owners.of(WORKERS):
            data = tq.kv_batch_get(
                keys=rows.keys, partition_id=rows.partition_id, select_fields=[row.PROMPTS, row.RESPONSES]
            )
            lengths = [
                len(prompt) + len(reply)
                for prompt, reply in zip(*(data[name].unbind() for name in (row.PROMPTS, row.RESPONSES)), strict=True)
            ]
            new = nested([torch.full((length,), -0.5) for length in lengths])
            data_plane.write(rows, {"log_probs": new, "entropy": new})
        return rows

    def update_actor(self, rows: Rows) -> dict[str, Any]:
        self.updates += 1
        return {"metrics": {"loss": [0.5], "grad_norm": [1.0], "mfu": [0.1]}}


class Driver(MasTrainer):
    """The trainer of a team without engines and worker processes."""

    def __init__(self, run: Run, manager: Sessions, ranks: int):
        self.run, self.mas, self.config = run, run.mas, run.config
        self.trainer_mode, self.parameter_sync_step = self.mode.verl, 1
        self.use_critic = self.use_reference_policy = self.curr_step_profile = False
        self.pools = object.__new__(Pools)
        self.pools.mas, self.pools.n_gpus = run.mas, ranks * len(run.mas.policies)
        self.policies = {name: policy_of(run, name, ranks, manager.owners) for name in run.mas.policies}
        self.agent_loop_manager, self.replay_buffer = manager, self._build_replay_buffer()
        self.credit = Credit(run, list(agents_of(run.mas)))
        self.filter = TaskFilter(run.mas.filter, lambda rows: [])
        self._named, self._sessions = defaultdict(int), SessionCounts()  # type: ignore[assignment]
        self._findings = SimpleNamespace(add=lambda metrics: [])
        self._rollout_moe_lb_metrics_accumulator = SimpleNamespace()
        self.global_steps, self.total_training_steps = 1, 1
        self.agreement = Agreement(None, corrected=False)

    def _sleep(self) -> None:
        """Do nothing, because there are no engines."""

    def one_step(self, tasks: int) -> dict[str, float]:
        """Run a step as verl's `fit` does."""
        self.config.data.train_batch_size = tasks
        self.train_dataloader_it = iter(
            [{row.RAW_PROMPT: np.array([[{"role": "user", "content": "q"}]] * tasks, dtype=object)}]
        )
        metrics: dict[str, float] = {}
        timing = {"step": 1.0, "gen": 1.0}
        batch = self.step(metrics, timing)
        self._compute_metrics(batch, metrics, timing, self.global_steps, 0)
        tq.kv_clear(keys=batch.keys, partition_id=batch.partition_id)
        self.global_steps += 1
        return metrics


def policy_of(run: Run, name: str, ranks: int, owners: Owners) -> PolicyTrainer:
    policy = object.__new__(PolicyTrainer)
    policy.name, policy.config = name, run.view(name).config
    policy.view, policy.weighting, policy.plan = run.view(policy.name), run.mas.loss.weighting, None
    policy.prepared, policy.use_critic, policy.use_reference_policy = 0, False, False
    policy.actor_rollout_wg = Workers(Group(ranks, owners))  # type: ignore[arg-type]
    policy.tokenizer = SimpleNamespace(eos_token_id=1)
    return policy


def measured(run: Run, rows: int, ranks: int, tokens: int) -> Iterator[tuple[str, float]]:
    owners = Owners(OURS)
    with ExitStack() as stack:
        made = stack.enter_context(queue())
        folder = stack.enter_context(tempfile.TemporaryDirectory())
        watched = {**WATCHED, QUEUES: [*WATCHED[QUEUES], (made.client, "kv_retrieve_meta")]}
        stack.enter_context(owners.watching(watched))
        before = memory()
        driver = Driver(run, Sessions(run, folder, owners, tokens), ranks)
        owners.take(), made.take()
        metrics = driver.one_step(rows // GROUP)
        used, queue_use = owners.take(), made.take()
        assert sum(metrics[f"policy/{name}/rows/real"] for name in run.mas.policies) == rows
        for owner in DRIVER:
            yield f"{owner}, us per row", 1e6 * used[owner] / rows
        yield "driver, s per step", sum(used[owner] for owner in DRIVER)
        for part in ("controller", "storage"):
            yield f"{part}, us per row", 1e6 * queue_use[part] / rows
        yield "bytes, kB per row, both ways", queue_use["bytes"] / rows / 1e3
        yield "driver, MiB more", memory() - before
        yield "controller, MiB", made.controller.mib
        yield "storage, MiB", sum(unit.mib for unit in made.units)


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=sizes, default=sizes("1k,4k,16k"))
    parser.add_argument("--policies", type=int, default=8, help="1 to 8")
    parser.add_argument("--ranks", type=int, default=16, help="training workers of a policy")
    parser.add_argument("--tokens", type=int, default=16)
    given = parser.parse_args(arguments)
    torch.set_num_threads(1)
    curves: dict[str, dict[int, float]] = defaultdict(dict)
    for rows in given.rows:
        for name, value in measured(Run.of(composed(given.policies)), rows, given.ranks, given.tokens):
            curves[name][rows] = value
    show(f"the driver, {given.policies} policies of {given.ranks} training workers", curves)
    last, base = given.rows[-1], min(given.rows, key=lambda count: abs(count - 4096))
    for owner in DRIVER:
        curve = curves[f"{owner}, us per row"]
        ratio(f"{owner}, us per row at {last:,} rows", curve[last], f"at {base:,}", curve[base], 1.2)


if __name__ == "__main__":
    main()
