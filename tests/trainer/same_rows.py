"""Makes two runs sample the same tokens and see the same rows in the same order. verl loads it in every process.

verl names tasks by random uids, does not seed requests, and orders rows by the time at which they end. Here tasks are
named by step and number, requests are seeded by task and session, and rows are sorted. verl compares scores in float32
and verl-mas in float64. Here verl uses float64, too, because Adam's first steps turn the rounding of an advantage into
differences of 1e-6 in the weights.
"""

from __future__ import annotations

import os
import pickle
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from wrapt import register_post_import_hook

if TYPE_CHECKING:
    from torch import Tensor


def _name_tasks(module: ModuleType) -> None:
    from verl.utils import tensordict_utils as tu

    fetch = module.PPOTrainer._fetch_one_gen_batch  # noqa: SLF001  # verl's, see scripts/verl_contract

    def named(self: Any) -> Any:
        batch = fetch(self)
        tu.assign_non_tensor_stack(batch, "uid", [f"{self.global_steps}-{i}" for i in range(len(batch))])
        return batch

    module.PPOTrainer._fetch_one_gen_batch = named  # noqa: SLF001


def _seed_verls_agent(module: ModuleType) -> None:
    run = module.SingleTurnAgentLoop.run

    async def seeded(self: Any, sampling_params: dict[str, Any], **kwargs: Any) -> Any:
        seed = f"{kwargs['uid']}_{kwargs['session_id']}"
        return await run(self, {**sampling_params, "seed": seed}, **kwargs)

    module.SingleTurnAgentLoop.run = seeded


def _seed_our_agents(module: ModuleType) -> None:
    sampling = module.VerlPolicy.sampling

    def seeded(self: Any, request: Any) -> dict[str, Any]:
        return {**sampling(self, request), "seed": request.session}

    module.VerlPolicy.sampling = seeded


def _compare_in_float64(module: ModuleType) -> None:
    grpo: Callable[..., tuple[Tensor, ...]] = module.compute_grpo_outcome_advantage

    def exact(token_level_rewards: Tensor, **kwargs: Any) -> tuple[Tensor, ...]:
        return tuple(values.float() for values in grpo(token_level_rewards.double(), **kwargs))

    vars(module)["compute_grpo_outcome_advantage"] = exact


def _sort_and_record(module: ModuleType) -> None:
    for buffer in (module.ReplayBuffer, module.ReplayBufferAsync):
        buffer.sample = _sorted(buffer.sample)


def _sorted(sample: Callable[..., Any]) -> Callable[..., Any]:

    def sorted_sample(self: Any, global_steps: int, partition_id: str, batch_size: int) -> Any:
        import transfer_queue as tq

        # verl's interval of two seconds would be most of a step.
        self.poll_interval = float(os.environ.get("ROWS_POLL", "0.1"))
        batch, metrics = sample(self, global_steps, partition_id, batch_size)
        # Sort by task, session and act like a team, because sums of floats depend on the order.
        batch.reorder(sorted(range(len(batch)), key=lambda i: (len(batch.keys[i]), batch.keys[i])))
        wanted = ["prompts", "responses", "rm_scores"]
        data = tq.kv_batch_get(keys=batch.keys, partition_id=partition_id, select_fields=wanted)
        rows = {key: [data[name][i].tolist() for name in wanted] for i, key in enumerate(batch.keys)}
        folder = Path(os.environ["ROWS_DIR"])
        (folder / f"{partition_id}-{global_steps}.pickle").write_bytes(pickle.dumps(rows))
        return batch, metrics

    return sorted_sample


register_post_import_hook(_name_tasks, "verl.trainer.ppo.v1.trainer_base")
register_post_import_hook(_seed_verls_agent, "verl.experimental.agent_loop.single_turn_agent_loop")
register_post_import_hook(_compare_in_float64, "verl.trainer.ppo.core_algos")
register_post_import_hook(_seed_our_agents, "verl_mas.rollout.verl_client")
register_post_import_hook(_sort_and_record, "verl.trainer.ppo.v1.replay_buffer")
