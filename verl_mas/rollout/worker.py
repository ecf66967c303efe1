"""Runs sessions inside verl's agent-loop worker. Importing this module loads verl."""

import asyncio
import gc
import logging
import os
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path

import ray
from omegaconf import DictConfig
from tensordict import TensorDict
from verl.trainer.ppo.v1.agent_loop_tq import AgentLoopWorkerTQ
from verl.utils.config import omega_conf_to_dataclass
from verl.utils.rollout_trace import rollout_trace_attr

from verl_mas.config.adapters import host_policy
from verl_mas.config.placement import sessions_per_worker, workers
from verl_mas.config.run import Run
from verl_mas.config.schema import MasConfig
from verl_mas.config.user_code import load_user_code
from verl_mas.environment.mcp.servers import McpServers
from verl_mas.errors import EngineLost, FaultKind, WorkflowError, raise_all
from verl_mas.gateway.endpoints.openai import OpenAIClient
from verl_mas.rollout.busy import Lag
from verl_mas.rollout.counts import SessionCounts, described
from verl_mas.rollout.stored import answer_of, failed_validation_row, stored_rows
from verl_mas.rollout.team_client import Gate, TeamClient
from verl_mas.rollout.tool_calls import tool_limits
from verl_mas.rollout.trajectories import TextPerToken, TrajectoryWriter, folder_of
from verl_mas.rollout.verl_client import Model, VerlPolicy
from verl_mas.verl_ import data_plane
from verl_mas.verl_.row import AGENT_NAME, FAILURE, FINISHED, REWARD_EXTRA_INFO, RUNNING, SESSION_ID, UID, StoredRow
from verl_mas.verl_.types import Fields, Trajectory, Untyped
from verl_mas.workflow.base import agents_of, resolve
from verl_mas.workflow.client import LLMClient
from verl_mas.workflow.rewards import Score
from verl_mas.workflow.run import run_session
from verl_mas.workflow.session import Session, SessionConfig, SessionResult
from verl_mas.workflow.task import Task
from verl_mas.workflow.tool_sources import tools_of, unknown_tools

# The key in the configuration with which the manager passes the name of the attempt to its workers.
ATTEMPT = "mas_attempt"
# Threshold of the garbage collector's oldest generation, so high that automatic full collections never run.
NEVER = 1_000_000_000
# Seconds after which a late reward is logged. Almost all rewards take less than a second.
LATE_REWARD_S = 60.0
logger = logging.getLogger(__name__)

_StockWorker: Untyped = AgentLoopWorkerTQ.__ray_metadata__.modified_class  # type: ignore[attr-defined]


class GroupFailed(Exception):
    """A session failed, and `mas.faults.then` says to drop its whole group."""


class MasAgentLoopWorker(_StockWorker):
    """A subclass of verl's worker that runs teams. The workflow runs every task, even if the row of the task names one
    of verl's agent loops.

    A worker process starts and imports modules before the engines exist. `begin` initializes the worker.
    """

    def __init__(self, config: DictConfig, *later: object):
        load_user_code(Run.of(config).mas)

    def begin(self, config: DictConfig, served: Mapping[str, TeamClient], *others: object) -> None:
        """Initialize the worker. It is called once, with the clients of all local policies and then the further
        arguments of verl's worker."""
        self.run, self.served = Run.of(config), served
        self.mas = self.run.mas
        super().__init__(config, next(iter(served.values())), *others)
        # An adapter uses the tokenizer and the processor of its base.
        models = {name: self._model(name) for name in served if host_policy(self.mas, name) == name}
        self.models = {name: models[host_policy(self.mas, name)] for name in served}
        self.gates = gates_of(self.mas, served)
        for name, client in served.items():
            client.gate, client.decode = self.gates[name], self.models[name].tokenizer.decode
        self.session_config = self._session_config(served)
        # A semaphore is first come, first served, so the sessions of the first tasks start first.
        self.slots = asyncio.Semaphore(sessions_per_worker(self.run))
        self.writer = data_plane.Writer()
        # Counts since the last `pop_counts`. The keys are the values of `validate`.
        self.counts = {False: SessionCounts(), True: SessionCounts()}
        self.lag = Lag()
        self.trajectories = self._trajectory_writer()
        self.logged: set[FaultKind] = set()
        self.broken: Exception | None = None
        collect_between_steps()

    async def generate_sequences(self, batch: TensorDict) -> None:
        self._raise_if_broken()
        self.lag.begin()
        await super().generate_sequences(batch)

    async def pause(self, policies: Sequence[str] | None = None) -> None:
        """Close the gates of these policies, or of all policies. Until `resume`, their requests reach no engine."""
        for name in self.gates if policies is None else policies:
            self.gates[name].close()

    async def resume(self, policies: Sequence[str] | None = None) -> None:
        for name in self.gates if policies is None else policies:
            self.gates[name].open()

    async def cancel_all(self) -> None:
        """End every task that is still running, without rows."""
        tasks = list(self.background_tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def pop_counts(self, validate: bool) -> SessionCounts:
        """Return the counts of training or validation since the last call. The counts of training also include the busy
        times of engines during validation."""
        self._raise_if_broken()
        counts, self.counts[validate] = self.counts[validate], SessionCounts()
        counts += SessionCounts(lag=self.lag.pop())
        # Collect garbage now, since a step or a validation has ended.
        gc.collect()
        if self.trajectories is not None:
            counts += await self.trajectories.in_thread(self.trajectories.compress)
        if validate:
            return counts
        busy = {name: client.busy for name, client in self.served.items()}
        requests = {name: one.pop_seconds() for name, one in busy.items()}
        return counts + SessionCounts(busy={name: one.pop() for name, one in busy.items()}, requests=requests)

    async def _run_prompt(
        self, prompt: Fields, sampling_params: Fields, trajectory: Trajectory, trace: bool = False
    ) -> None:
        """Run all sessions of one task. Their rows are written together, before the task's status becomes FINISHED."""
        uid, validate = prompt[UID], trajectory["validate"]
        partition = data_plane.VALIDATION if validate else data_plane.TRAIN
        written = False
        try:
            await data_plane.set_status(uid, partition, RUNNING)
            rows = await self._run_group(prompt, validate)
            if rows:
                await self.writer.put(rows, partition)
                written = True
        except GroupFailed as failure:
            self.counts[validate] += SessionCounts(groups_given_up=1)
            logger.warning("task %s is dropped: %s", uid, failure)
        except asyncio.CancelledError:
            raise
        except BaseException as error:
            # Failures of sessions have been recorded as faults, and raise nothing here. So this error is a lost engine
            # or a bug of verl-mas, and the run ends.
            self.broken = error if isinstance(error, Exception) else RuntimeError(f"{type(error).__name__}: {error}")
            logger.error("task %s ends the run", uid, exc_info=error)
        # A cancelled task does not get here and gets no status, since nothing waits for it at the end of a run.
        self.counts[validate] += SessionCounts(tasks=1)
        # Report a failure only for a group without rows, because the replay buffer replaces a failed group by another
        # group. A group that lost only some of its sessions has not failed.
        try:
            await data_plane.set_status(uid, partition, FINISHED if written else FAILURE)
        except Exception as error:
            # The trainer would wait forever for the status of this task. If this process ends, the trainer notices
            # within seconds.
            logger.critical("the status of task %s cannot be set, so this worker ends", uid, exc_info=error)
            os._exit(1)

    async def _run_group(self, prompt: Fields, validate: bool) -> list[StoredRow]:
        rollout = self.config.actor_rollout_ref.rollout
        sessions = int(prompt.pop("__rollout_n__", rollout.val_kwargs.n if validate else rollout.n))
        greedy = not prompt.pop("__do_sample__", True) and not validate
        dataset = {name: value for name, value in prompt.items() if name != AGENT_NAME}
        tasks = [
            asyncio.ensure_future(self._run_session({**dataset, SESSION_ID: number}, validate, greedy))
            for number in range(sessions)
        ]
        try:
            return [row for rows in await asyncio.gather(*tasks) for row in rows]
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            if self.trajectories is not None:
                await self.trajectories.in_thread(self.trajectories.end_group, prompt[UID])

    async def _run_session(self, dataset: Fields, validate: bool, greedy: bool) -> list[StoredRow]:
        # A session waits here for a slot, and its clocks start after that. A waiting session needs little memory, since
        # it is only a coroutine and its data.
        async with self.slots:
            task = Task.of_row(dataset, validate=validate, greedy=greedy)
            workflow, score = partial(resolve, self.mas.workflow), partial(self._score, dataset=dataset)
            # Turn traces off, as verl's worker does, because verl's V1 trainer does not support traces yet.
            with rollout_trace_attr(trace=False):
                finished = await run_session(workflow, task, self.session_config, score)
        await self._record(finished)
        if finished.failed:
            return await self._without_rows(finished, dataset)
        return stored_rows(finished.session, self.models, dataset)

    async def _without_rows(self, finished: SessionResult, dataset: Fields) -> list[StoredRow]:
        session = finished.session
        if session.task.validate:
            log_probs = self.config.actor_rollout_ref.rollout.calculate_log_probs
            return [failed_validation_row(session, self.models, dataset, log_probs)]
        if self.mas.faults.then == "fail_group":
            raise GroupFailed(f"session {session.task.session}: {finished.faults[-1]}")
        return []

    async def _score(self, session: Session, dataset: Fields) -> Score:
        """Score the answer with verl's reward loop, which uses a scorer of verl or the user's function."""
        answer = answer_of(session, self.models, self.tokenizer)
        late = asyncio.get_running_loop().call_later(LATE_REWARD_S, _warn_of_late_reward, session.task.key)
        try:
            await self._compute_score([answer], kwargs=dataset)
        except ray.exceptions.RayActorError as error:
            raise EngineLost(f"a reward worker is gone: {error}") from error
        finally:
            late.cancel()
        if answer.reward_score is None:
            rule = "a team is scored when its session ends, and the colocated reward model scores later"
            fix = "set Outcome.reward, use a reward function, or reward.reward_model.enable_resource_pool=True"
            raise WorkflowError("a session without a reward", rule=rule, fix=fix)
        return Score(answer.reward_score, answer.extra_fields.get(REWARD_EXTRA_INFO, {}))

    async def _record(self, finished: SessionResult) -> None:
        self.counts[finished.session.task.validate] += SessionCounts.of(finished)
        for fault in finished.faults:
            if fault.kind in self.logged:
                logger.warning("session %s: %s", finished.session.task.key, fault.line)
            else:
                self.logged.add(fault.kind)
                logger.warning("the first %s in this worker: %s", fault.kind.value, described(finished, fault))
        if self.trajectories is not None:
            # A record that cannot be written ends the run.
            status = "dropped" if finished.failed else "finished"
            await self.trajectories.in_thread(self.trajectories.write, finished, status)

    def _model(self, policy: str) -> Model:
        """Return the tokenizer and processor of a policy. If the policy has the model of the worker's configuration,
        the worker's tokenizer and processor are returned."""
        view = self.run.view(policy).config.actor_rollout_ref.model
        if view == self.config.actor_rollout_ref.model:
            return Model(self.tokenizer, self.processor, self.hf_model_type, self.mm_processor_kwargs)
        config = omega_conf_to_dataclass(view)
        if view.get("custom_chat_template") is not None:
            # For a model with a processor, verl sets this template only on the processor, so set it on the tokenizer.
            config.tokenizer.chat_template = view.custom_chat_template
        return Model(config.tokenizer, config.processor, config.hf_config.model_type, self.mm_processor_kwargs)

    def _session_config(self, served: Mapping[str, TeamClient]) -> SessionConfig:
        clients: dict[str, LLMClient] = {
            name: OpenAIClient.of(spec.remote)
            if spec.remote is not None
            else VerlPolicy(self.run.view(name).config, served[name], self.models[name], self.dataset_cls)
            for name, spec in self.mas.policies.items()
        }
        agents = agents_of(self.mas)
        servers = McpServers(self.mas.mcp, Path(self.config.trainer.default_local_dir, "mcp")).start()
        tools = tools_of([*self.tools, *servers.tools])
        raise_all(unknown_tools(agents.values(), tools))
        limits = tool_limits(self.rollout_config.multi_turn)
        return SessionConfig(agents, clients, self.mas.branch, self.mas.reward, self.mas.faults, tools, limits)

    def _trajectory_writer(self) -> TrajectoryWriter | None:
        spec = self.mas.trajectories
        if not spec.enabled:
            return None
        folder = folder_of(spec, self.config.trainer.default_local_dir)
        tokens = {name: TextPerToken(model.tokenizer) for name, model in self.models.items()} if spec.tokens else {}
        return TrajectoryWriter(spec, folder, self.config[ATTEMPT], workers(self.config), tokens)

    def _raise_if_broken(self) -> None:
        """Raise the error that ended a task, if there is one. verl does not await the tasks of sessions, so their error
        is raised at the next call of the worker."""
        if self.broken is not None:
            raise self.broken


def _warn_of_late_reward(session: str) -> None:
    logger.warning(
        "the reward of session %s has been awaited for %.0f s. One reply can make a regular expression or sympy "
        "compute without end: give the reward function a time limit of its own. "
        "mas.faults.session_timeout_s ends the session",
        session,
        LATE_REWARD_S,
    )


RemoteMasAgentLoopWorker = ray.remote(MasAgentLoopWorker)


def collect_between_steps() -> None:
    """Let Python's collector visit its oldest generation only in `pop_counts`, and never the objects that exist now.

    A full collection visits all imported modules and running sessions, and stops the sessions for half a second or
    longer.
    """
    gc.collect()
    gc.freeze()
    young, middle, _ = gc.get_threshold()
    gc.set_threshold(young, middle, NEVER)


def gates_of(mas: MasConfig, policies: Iterable[str]) -> dict[str, Gate]:
    """Make the gate of each policy. Policies with the same base share the engines of the base, so they share a gate."""
    gates: dict[str, Gate] = defaultdict(Gate)
    return {name: gates[host_policy(mas, name)] for name in policies}
