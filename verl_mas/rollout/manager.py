"""The class that `rollout.agent.agent_loop_manager_class` names."""

from __future__ import annotations

from collections.abc import Mapping
from typing import cast

import ray
from omegaconf import open_dict
from verl.trainer.ppo.v1.agent_loop_tq import AgentLoopManagerTQ

from verl_mas.config import load
from verl_mas.rollout.counts import SessionCounts
from verl_mas.rollout.trajectories import folder_of, new_attempt, write_advantages
from verl_mas.rollout.worker import ATTEMPT, RemoteMasAgentLoopWorker
from verl_mas.verl_types import Actor


class MasAgentLoopManager(AgentLoopManagerTQ):
    """`llm_client` is verl's client, or one client per policy, by name."""

    def __init__(self, *args: object, **kwargs: object):
        super().__init__(*args, **kwargs)  # type: ignore[no-untyped-call]
        # verl's __init__ sets its own class.
        self.agent_loop_workers_class = RemoteMasAgentLoopWorker  # type: ignore[assignment]
        with open_dict(self.config):
            # Every worker gets the configuration.
            self.config[ATTEMPT] = new_attempt()

    def record_advantages(self, step: int, advantages: Mapping[str, float]) -> None:
        """Written beside the sessions on disk; keys are those of the rows."""
        spec = load(self.config.get("mas")).trajectories
        if spec.enabled:
            folder = folder_of(spec, self.config.trainer.default_local_dir)
            write_advantages(folder, step, self.config[ATTEMPT], advantages)

    def pop_counts(self, validate: bool = False) -> SessionCounts:
        """The sessions since the last call: how many, what they reported, how many failed and why.

        Raises EngineLost when an engine was lost meanwhile.
        """
        workers = cast("list[Actor]", self.agent_loop_workers)
        parts: list[SessionCounts] = ray.get([worker.pop_counts.remote(validate) for worker in workers])
        return sum(parts, SessionCounts())
