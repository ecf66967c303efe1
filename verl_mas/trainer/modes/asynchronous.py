"""What the asynchronous modes have in common: tasks are dispatched some steps before they are trained on.

A task has the step of its dispatch: its age is counted from there, and the oldest tasks make the next batch. Those of
the warm-up have the steps before the first, as if the run had been going on. With W warm-up batches, `wait` and a
threshold of W + 1, the batch of a step is therefore the one that was dispatched W steps before, whatever the timing.
"""

from __future__ import annotations

import logging
import time
from collections import Counter, defaultdict
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from threading import Lock
from typing import TYPE_CHECKING

from omegaconf import DictConfig
from ray.exceptions import RayActorError
from verl.trainer.ppo.v1.replay_buffer import ReplayBufferAsync
from verl.workers.rollout.llm_server import LLMServerClient

from verl_mas import data_plane
from verl_mas.config.modes import COLOCATED, SEPARATE
from verl_mas.config.placement import serving_pool
from verl_mas.data_plane import TRAIN
from verl_mas.errors import SessionsFailed
from verl_mas.rollout.counts import SessionCounts
from verl_mas.row import FINISHED, GLOBAL_STEPS, STATUS, TagValues
from verl_mas.trainer import timeline
from verl_mas.trainer.policies.separate import SeparatePolicy
from verl_mas.trainer.trainer import POLL_SECONDS, TeamTrainer
from verl_mas.verl_.types import Actor

if TYPE_CHECKING:
    from verl_mas.rollout.manager import MasAgentLoopManager

# A child of verl's logger, which has the handler in the trainer's process.
logger = logging.getLogger(f"verl.{__name__}")


class AsyncTeamTrainer(TeamTrainer):
    def __init__(self, config: DictConfig):
        super().__init__(config)
        self._unjudged = SessionCounts()

    def _build_replay_buffer(self) -> TeamBuffer:
        return TeamBuffer(
            mode=self.mode.verl,
            v1=self.config.trainer.v1,
            batch_size=self._batch_size,
            refill=self._add_prompts_to_generate,
            look=self._count_sessions,
        )

    def _client_of(self, home: str, adapter: str | None) -> LLMServerClient:
        return self.members[home].client(adapter, resumes=True)

    def fit(self, agent_loop_manager: MasAgentLoopManager) -> None:  # type: ignore[override]
        """verl leaves it at the last step, or by an error, with sessions that still run."""
        try:
            super().fit(agent_loop_manager)
        finally:
            # A worker that is lost has no sessions, and is not why the run ends if something else is.
            with suppress(RayActorError):
                agent_loop_manager.cancel_all()

    # -- tasks ----------------------------------------------------------------------------------------------

    @property
    def _batch_size(self) -> int:
        return int(self.config.data.train_batch_size)

    def on_train_begin(self) -> None:
        """Dispatch what is missing of the tasks that are in flight when a step begins."""
        restored = len(data_plane.tasks(data_plane.TRAIN))
        self.token_count.keep(data_plane.listed(data_plane.TRAIN).values())
        wanted = int(self.config.trainer.v1[self.mode.verl].num_warmup_batches * self._batch_size)
        missing = max(0, min(wanted - restored, self._usable()))
        for step, tasks in warm_up(missing, self._batch_size, self.global_steps).items():
            self._dispatch(tasks, step)
        logger.info("warm-up: %d new tasks in flight, and %d of the checkpoint", missing, restored)

    def _add_batch_to_generate(self) -> None:
        """The batch of a step, or less of it where the steps that remain cannot train on all."""
        tasks = min(self._batch_size, self._usable())
        if tasks > 0:
            self._dispatch(tasks, self.global_steps)

    def _usable(self) -> int:
        """How many further tasks the steps that remain can train on."""
        steps = int(self.total_training_steps) - self.global_steps + 1
        return steps * self._batch_size - len(data_plane.tasks(data_plane.TRAIN))

    def _dispatch(self, tasks: int, step: int) -> None:
        """New tasks, named and tagged with the step; verl and `TeamTrainer` do so with the present one."""
        present, self.global_steps = self.global_steps, step
        try:
            self._submit_batch_to_rollout(self._next_train_batch(tasks))
        finally:
            self.global_steps = present

    def _reissue_inflight_prompts(self, partition_id: str = data_plane.TRAIN) -> int:
        """Tasks of a checkpoint without rows start again, with the steps that they have: with the present one, as verl
        gives them, they would be younger than they are and draw other numbers.

        A task that has failed may have done so because the run was about to end: an engine or a reward worker was lost.
        """
        again: dict[int, list[str]] = defaultdict(list)
        for uid, tag in data_plane.tasks(partition_id).items():
            if tag[STATUS] != FINISHED:
                again[tag[GLOBAL_STEPS]].append(uid)
        for step, uids in sorted(again.items()):
            uids.sort(key=lambda uid: (len(uid), uid))
            data_plane.announce(uids, partition_id, step)
            self.agent_loop_manager.generate_sequences(data_plane.prompts(uids, step))
        return sum(map(len, again.values()))

    # -- sessions -------------------------------------------------------------------------------------------

    def _count_sessions(self, least: int = 0) -> None:
        """A step may see the end of few sessions only, so failures are judged by batches of tasks that have ended."""
        ended = self.agent_loop_manager.pop_counts()
        self._sessions += ended
        self._unjudged += ended
        if self._unjudged.tasks >= self._batch_size:
            judged, self._unjudged = self._unjudged, SessionCounts()
            judged.check(self.mas.faults.max_dropped_share, f"the tasks that ended until step {self.global_steps}")


class ColocatedAsyncTrainer(AsyncTeamTrainer):
    """trainer.v1.trainer_mode=mas_colocate_async: engines and training take turns on the same devices.

    When enough tasks have ended, all engines are aborted and sleep while the policies are trained. Acts that are cut
    keep their tokens and continue under the new weights; the rest of a session does not notice.
    """

    mode = COLOCATED

    def on_sample_end(self) -> None:
        """Sessions span policies. If some engines slept before the others are aborted, these would serve sessions
        that then wait; and an engine sleeps only when it has nothing to do, so frozen ones are aborted, too."""
        self.agent_loop_manager.pause()
        with (
            self.timeline.span(timeline.ABORT),
            ThreadPoolExecutor(len(self.members), thread_name_prefix="abort") as executor,
        ):
            list(executor.map(lambda member: member.abort(), self.members.values()))
        super().on_sample_end()

    def on_step_end(self) -> None:
        """Requests come last: an engine takes them when it has its memory and its weights."""
        super().on_step_end()
        with self.timeline.span(timeline.RESUME):
            self.pools.each(self.members, lambda name: self.members[name].resume())
            self.agent_loop_manager.resume()


class SeparateAsyncTrainer(AsyncTeamTrainer):
    """trainer.v1.trainer_mode=mas_separate_async: policies train on GPUs of their own while their engines serve on."""

    mode = SEPARATE

    @property
    def _apart(self) -> dict[str, SeparatePolicy]:
        return {name: member for name, member in self.members.items() if isinstance(member, SeparatePolicy)}

    def _actors(self) -> dict[str, list[Actor]]:
        receivers = {f"weight receiver {{}} of policy {name}": one.receivers for name, one in self._apart.items()}
        return {**super()._actors(), **receivers}

    def on_init_end(self) -> None:
        self._turns = {serving_pool(self.mas, name): Lock() for name in self._apart}
        # One after the other: the first transfer of a policy makes its group of processes.
        for name in self.members:
            super()._wake_one(name)

    def _sleep(self) -> None:
        """Engines serve all the time."""

    def _wake(self) -> None:
        """Also a policy without rows gets its weights, and with them the step. Frozen engines are not touched."""
        self.pools.each(self._apart, self._wake_one)

    def _wake_one(self, name: str) -> None:
        """Sessions that call other policies continue meanwhile.

        Pools that train send at the same time, but to one serving pool in turn: each transfer takes buckets of
        `update_weights_bucket_megabytes` on its GPUs.
        """
        with self._turns[serving_pool(self.mas, name)]:
            self.agent_loop_manager.pause([name])
            super()._wake_one(name)
            self.agent_loop_manager.resume([name])


def warm_up(tasks: int, batch_size: int, step: int) -> dict[int, int]:
    """How many tasks of those that are dispatched before `step` have which step, the oldest first.

    In a run that resumes they are new tasks, and those of earlier steps have their names.
    """
    if step > 1:
        return {step: tasks} if tasks else {}
    return dict(Counter(-(place // batch_size) for place in reversed(range(tasks))))


# Batches of tasks that end without rows while one batch is waited for. Then no task has any, and the run ends.
FAILED_BATCHES = 10
SECONDS_BETWEEN_LOOKS = 3.0


class TeamBuffer(ReplayBufferAsync):
    """verl's, with a total order of the tasks. Where the run cannot continue, it ends instead of waiting.

    `look` raises if an engine is lost. `refill` adds that many tasks.
    """

    def __init__(
        self, mode: str, v1: DictConfig, batch_size: int, refill: Callable[[int], int], look: Callable[[], None]
    ):
        """`v1`: verl's section of that name. `batch_size`: the tasks of a step."""
        sampler = v1.sampler
        super().__init__(
            trainer_mode=mode,
            trainer_config=v1[mode],
            max_off_policy_threshold=sampler.max_off_policy_threshold,
            max_off_policy_strategy=sampler.max_off_policy_strategy,
            sampler_kwargs=sampler.sampler_kwargs,
            poll_interval=sampler.sampler_kwargs.get("poll_interval", POLL_SECONDS),
            refill_fn=refill,
        )
        self._most_failures = FAILED_BATCHES * batch_size
        self._failures = 0  # since the last batch was sampled
        self._look = look
        self._looked = time.monotonic()

    def _terminal_eviction_reasons(
        self, global_steps: int, partition_id: str
    ) -> tuple[set[str], set[str], set[str], Counter[float]]:
        """verl replaces tasks without rows, indefinitely if none has any."""
        reasons: tuple[set[str], set[str], set[str], Counter[float]] = super()._terminal_eviction_reasons(
            global_steps, partition_id
        )
        self._failures += len(reasons[2])
        if self._failures >= self._most_failures:
            raise SessionsFailed(
                f"{self._failures} tasks have ended without rows while step {global_steps} waited for its batch\n"
                f"  rule: a task without rows is replaced, until {FAILED_BATCHES} batches of them have none\n"
                "  fix:  read the records of the sessions (mas.trajectories): which acts and faults they have"
            )
        return reasons

    def _select_prompt_uids(
        self, partition_id: str, sampleable_keys: set[str], batch_size: int
    ) -> tuple[list[str], dict[str, TagValues], dict[str, int]]:
        """The oldest tasks; those of a step by their numbers, where verl's order is that of a set."""
        steps = dict(self.prompt_global_steps[partition_id])
        if partition_id == TRAIN:
            self._failures = 0
        ordered = sorted(sampleable_keys, key=lambda uid: (steps.get(uid, 0), len(uid), uid))
        return ordered[:batch_size], dict(self.partitions[partition_id]), steps

    def _wait_for_next_poll(self, partition_id: str, last_debug_time: float) -> float:
        if time.monotonic() - self._looked >= SECONDS_BETWEEN_LOOKS:
            self._look()
            self._looked = time.monotonic()
        last: float = super()._wait_for_next_poll(partition_id, last_debug_time)
        if last != last_debug_time:
            steps = self.prompt_global_steps[partition_id]
            out = self.pending_keys[partition_id] | self.running_keys[partition_id]
            oldest = min(out, key=lambda uid: (steps[uid], len(uid), uid), default=None)
            text = "none" if oldest is None else f"{oldest}, dispatched at step {steps[oldest]}"
            logger.info("the oldest task that has not ended: %s", text)
        return last
