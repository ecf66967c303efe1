"""A subclass of verl's agent-loop manager for teams. `rollout.agent.agent_loop_manager_class` selects it."""

import asyncio
import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import cast

import ray
from omegaconf import DictConfig, open_dict
from tensordict import TensorDict
from verl.trainer.ppo.v1.agent_loop_tq import AgentLoopManagerTQ

from verl_mas.config import load
from verl_mas.errors import ConfigError
from verl_mas.rollout.counts import SessionCounts
from verl_mas.rollout.team_client import Served
from verl_mas.rollout.trajectories import folder_of
from verl_mas.rollout.worker import ATTEMPT, RemoteMasAgentLoopWorker
from verl_mas.run_folder.session_files import new_attempt, write_advantages
from verl_mas.verl_.types import Actor

# A child of verl's logger. In the trainer's process, verl's logger has the handler.
logger = logging.getLogger(f"verl.{__name__}")

SECONDS_TO_CANCEL = 30.0


def early_workers(config: DictConfig) -> list[Actor]:
    """Start agent-loop workers that import modules while engines start. The manager that is created later, with the
    clients of the engines, uses these workers."""
    return cast("list[Actor]", MasAgentLoopManager.create(config, None).agent_loop_workers)


class MasAgentLoopManager(AgentLoopManagerTQ):
    """verl's manager with workers for teams.

    `llm_client` has one client per policy, and the agent-loop workers. It is None before the engines exist.
    """

    def __init__(self, *args: object, **kwargs: object):
        super().__init__(*args, **kwargs)
        self._full = False
        self._spec = load(self.config.get("mas")).trajectories
        # Replace the worker class that verl's __init__ has set.
        self.agent_loop_workers_class = RemoteMasAgentLoopWorker  # type: ignore[assignment]
        with open_dict(self.config):
            # Pass the name of the attempt to the workers in the configuration, which every worker gets.
            self.config[ATTEMPT] = new_attempt(self._records)

    async def _init_agent_loop_workers(self) -> None:
        if self.llm_client is None:
            await super()._init_agent_loop_workers()
            return
        if not isinstance(self.llm_client, Served):
            value, rule = "a team in one of verl's own trainers", "a team's trainer makes the clients of its policies"
            raise ConfigError(value, rule=rule, fix="use trainer.v1.trainer_mode=mas, which +mas=<team> sets")
        self.agent_loop_workers = [*self.llm_client.workers]
        given = self.config, dict(self.llm_client), self.teacher_client, self.reward_loop_worker_handles
        await asyncio.gather(*[worker.begin.remote(*given) for worker in self._workers])

    def generate_sequences(self, prompts: TensorDict) -> None:
        """Rotate the workers after a batch with fewer tasks than workers. verl always gives such a batch to the first
        workers, so the other workers would get no tasks."""
        super().generate_sequences(prompts)
        if (count := len(prompts)) < len(self.agent_loop_workers):
            self.agent_loop_workers = [*self.agent_loop_workers[count:], *self.agent_loop_workers[:count]]

    def pause(self, policies: Sequence[str] | None = None) -> None:
        """Close the gates of these policies, or of all policies, in every worker. Their requests then reach no engine
        until `resume`."""
        ray.get([worker.pause.remote(policies) for worker in self._workers])

    def resume(self, policies: Sequence[str] | None = None) -> None:
        """Open the gates again; call it when the engines serve."""
        ray.get([worker.resume.remote(policies) for worker in self._workers])

    def cancel_all(self) -> None:
        """Cancel every task that is still running; these tasks leave no rows. A workflow may catch its cancellation and
        continue. The manager waits at most SECONDS_TO_CANCEL for it, because its worker ends with the run anyway."""
        calls: list[ray.ObjectRef[None]] = [worker.cancel_all.remote() for worker in self._workers]
        done, late = ray.wait(calls, num_returns=len(calls), timeout=SECONDS_TO_CANCEL)
        if late:
            logger.warning(
                "sessions of %d agent-loop workers have not ended %g s after they were cancelled; they are left",
                len(late),
                SECONDS_TO_CANCEL,
            )
        ray.get(done)

    def record_advantages(self, step: int, advantages: Mapping[str, float]) -> None:
        """Write the advantages, by the keys of the rows, next to the session records on disk."""
        if self._spec.enabled:
            compressed = self._spec.format == "zst"
            write_advantages(self._records, step, self.config[ATTEMPT], advantages, compressed=compressed)

    def pop_counts(self, validate: bool = False) -> SessionCounts:
        """Count the sessions since the last call: how many ran, what they reported, how many failed and why.

        Raises EngineLost if an engine was lost meanwhile.
        """
        parts: list[SessionCounts] = ray.get([worker.pop_counts.remote(validate) for worker in self._workers])
        counts = sum(parts, SessionCounts())
        if counts.without_space and not self._full:
            self._full = True
            logger.warning(
                "sessions are no longer recorded: %s has reached mas.trajectories.max_gib=%g. The training continues. "
                "To record again, raise it when the run is resumed, or set mas.trajectories.dir to another folder",
                self._records,
                self._spec.max_gib,
            )
        return counts

    @property
    def _records(self) -> Path:
        return folder_of(self._spec, self.config.trainer.default_local_dir)

    @property
    def _workers(self) -> list[Actor]:
        return cast("list[Actor]", self.agent_loop_workers)
