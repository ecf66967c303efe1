"""The class that `rollout.agent.agent_loop_manager_class` names."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from typing import Any

import ray
from verl.trainer.ppo.v1.agent_loop_tq import AgentLoopManagerTQ

from verl_mas.config import load
from verl_mas.rollout.trajectories import folder_of, write_advantages
from verl_mas.rollout.worker import INFO_COUNT, INFO_SUM, RemoteMasAgentLoopWorker


class MasAgentLoopManager(AgentLoopManagerTQ):
    """`llm_client` is verl's client, or a client for each policy by name."""

    def __init__(self, *args: Any, **kwargs: Any):
        super().__init__(*args, **kwargs)
        # verl's __init__ sets its own class.
        self.agent_loop_workers_class: Any = RemoteMasAgentLoopWorker

    def record_advantages(self, step: int, advantages: Mapping[str, float]) -> None:
        """For the sessions on disk; keys are those of the rows."""
        spec = load(self.config.get("mas")).trajectories
        if spec.enabled:
            write_advantages(folder_of(spec, self.config.trainer.default_local_dir), step, advantages)

    def pop_metrics(self, validate: bool = False) -> dict[str, float]:
        """Sessions since the last call: how many, what they reported, how many were dropped or retried, faults by kind.

        Raises EngineLost when an engine was lost meanwhile.
        """
        workers: list[Any] = self.agent_loop_workers
        counts: defaultdict[str, float] = defaultdict(float)
        for part in ray.get([worker.pop_metrics.remote(validate) for worker in workers]):
            for name, count in part.items():
                counts[name] += count
        sessions = counts.pop("sessions", 0)
        means = {name: counts.pop(name, 0) / max(1, sessions) for name in ("acts", "seconds")}
        reported = [name.removeprefix(INFO_SUM) for name in counts if name.startswith(INFO_SUM)]
        infos = {name: counts.pop(INFO_SUM + name) / counts.pop(INFO_COUNT + name) for name in reported}
        return {
            **{f"session/{name}/mean": value for name, value in infos.items()},
            "session/count": sessions,
            "session/acts/mean": means["acts"],
            "session/seconds/mean": means["seconds"],
            "session/dropped": counts.pop("dropped", 0),
            "session/retried": counts.pop("retried", 0),
            **{f"session/{name}": value for name, value in counts.items()},
        }
