"""Base of the asynchronous modes, in which tasks are dispatched some steps before they are trained on.

A task is tagged with the step of its dispatch. Its age is counted from this step, and the oldest tasks make the next
batch. Warm-up tasks are tagged with steps before step 1, as if the run had started earlier. With W warm-up batches,
`max_off_policy_strategy=wait` and `max_off_policy_threshold=W + 1`, each step therefore trains on the batch that was
dispatched W steps earlier, whatever the timing.
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

from verl_mas.config.modes import COLOCATED, SEPARATE
from verl_mas.config.placement import serving_pool
from verl_mas.errors import SessionsFailed
from verl_mas.rollout.counts import SessionCounts
from verl_mas.trainer import timeline
from verl_mas.trainer.policies.separate import SeparatePolicy
from verl_mas.trainer.trainer import POLL_SECONDS, TeamTrainer
from verl_mas.verl_ import data_plane
from verl_mas.verl_.data_plane import TRAIN
from verl_mas.verl_.row import FINISHED, GLOBAL_STEPS, STATUS, TagValues
from verl_mas.verl_.types import Actor

if TYPE_CHECKING:
    from verl_mas.rollout.manager import MasAgentLoopManager

# A child of verl's logger. In the trainer's process, verl's logger has the handler.
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

    def fit(self, agent_loop_manager: MasAgentLoopManager) -> None:  # type: ignore[override]
        """Cancel the sessions that still run when verl's `fit` returns after the last step, or raises."""
        try:
            super().fit(agent_loop_manager)
        finally:
            # A lost worker has no sessions to cancel, and its error must not hide the error that ends the run.
            with suppress(RayActorError):
                agent_loop_manager.cancel_all()

    # -- tasks ----------------------------------------------------------------------------------------------

    @property
    def _batch_size(self) -> int:
        return int(self.config.data.train_batch_size)

    def on_train_begin(self) -> None:
        """Dispatch the warm-up tasks that the checkpoint has not restored."""
        restored = len(data_plane.tasks(data_plane.TRAIN))
        self.token_count.keep(data_plane.listed(data_plane.TRAIN).values())
        wanted = int(self.config.trainer.v1[self.mode.verl].num_warmup_batches * self._batch_size)
        missing = max(0, min(wanted - restored, self._usable()))
        for step, tasks in warm_up(missing, self._batch_size, self.global_steps).items():
            self._dispatch(tasks, step)
        logger.info("warm-up: %d new tasks in flight, and %d of the checkpoint", missing, restored)

    def _add_batch_to_generate(self) -> None:
        """Dispatch the batch of a step, or fewer tasks if the remaining steps cannot train on all of them."""
        tasks = min(self._batch_size, self._usable())
        if tasks > 0:
            self._dispatch(tasks, self.global_steps)

    def _usable(self) -> int:
        """Number of further tasks that the remaining steps can train on."""
        steps = int(self.total_training_steps) - self.global_steps + 1
        return steps * self._batch_size - len(data_plane.tasks(data_plane.TRAIN))

    def _dispatch(self, tasks: int, step: int) -> None:
        """Dispatch new tasks with the name and tag of `step`, which verl and `TeamTrainer` read from `global_steps`."""
        present, self.global_steps = self.global_steps, step
        try:
            self._submit_batch_to_rollout(self._next_train_batch(tasks))
        finally:
            self.global_steps = present

    def _reissue_inflight_prompts(self, partition_id: str = data_plane.TRAIN) -> int:
        """Restart tasks of a checkpoint that have no rows, each with its original step.

        verl would tag the tasks with the current step, so they would count as younger than they are, and their sessions
        would draw other random numbers. Failed tasks restart, too: if the run ended because an engine or a
        reward worker was lost, this loss may also be the reason why the tasks failed.
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
        """Check the share of failed sessions once per batch of ended tasks, since few sessions may end in a single
        step."""
        ended = self.agent_loop_manager.pop_counts()
        self._sessions += ended
        self._unjudged += ended
        if self._unjudged.tasks >= self._batch_size:
            judged, self._unjudged = self._unjudged, SessionCounts()
            judged.check(self.mas.faults.max_dropped_share, f"the tasks that ended until step {self.global_steps}")


class ColocatedAsyncTrainer(AsyncTeamTrainer):
    """trainer.v1.trainer_mode=mas_colocate_async: engines and training take turns on the same devices.

    When enough tasks have ended, all engines are aborted and sleep while the policies are trained. Acts that are cut
    keep their tokens and continue under the new weights. The rest of the session is not affected.
    """

    mode = COLOCATED

    def on_sample_end(self) -> None:
        """Pause requests and abort all engines before any of them sleeps.

        A session calls several policies. If some engines slept earlier than other engines, the engines still awake
        would serve sessions that must then wait for a sleeping engine. Frozen engines are aborted, too, because an
        engine can sleep only when it has no requests.
        """
        self.agent_loop_manager.pause()
        with (
            self.timeline.span(timeline.ABORT),
            ThreadPoolExecutor(len(self.policies), thread_name_prefix="abort") as executor,
        ):
            list(executor.map(lambda policy: policy.abort(), self.policies.values()))
        super().on_sample_end()

    def on_step_end(self) -> None:
        """Wake the engines first and admit requests last, because an engine needs its memory and weights to serve
        requests."""
        super().on_step_end()
        with self.timeline.span(timeline.RESUME):
            self.pools.each(self.policies, lambda name: self.policies[name].resume())
            self.agent_loop_manager.resume()


class SeparateAsyncTrainer(AsyncTeamTrainer):
    """trainer.v1.trainer_mode=mas_separate_async: policies train on separate GPUs while their engines keep serving."""

    mode = SEPARATE

    @property
    def _apart(self) -> dict[str, SeparatePolicy]:
        return {name: policy for name, policy in self.policies.items() if isinstance(policy, SeparatePolicy)}

    def _actors(self) -> dict[str, list[Actor]]:
        receivers = {f"weight receiver {{}} of policy {name}": one.receivers for name, one in self._apart.items()}
        return {**super()._actors(), **receivers}

    def on_init_end(self) -> None:
        self._turns = {serving_pool(self.mas, name): Lock() for name in self._apart}
        # Wake policies one after the other, so that their first transfers, which create process groups, do not overlap.
        for name in self.policies:
            super()._wake_one(name)

    def _sleep(self) -> None:
        """Do nothing: the engines serve all the time."""

    def _wake(self) -> None:
        """Send weights and the step number to the engines of all trained policies, even of policies without rows."""
        self.pools.each(self._apart, self._wake_one)

    def _wake_one(self, name: str) -> None:
        """Send weights to the engines of one policy; sessions that call other policies continue meanwhile.

        Training pools send at the same time, but transfers to one serving pool take turns, because each allocates
        buckets of `update_weights_bucket_megabytes` on its GPUs.
        """
        with self._turns[serving_pool(self.mas, name)]:
            self.agent_loop_manager.pause([name])
            super()._wake_one(name)
            self.agent_loop_manager.resume([name])


def warm_up(tasks: int, batch_size: int, step: int) -> dict[int, int]:
    """Map steps, the oldest first, to the number of warm-up tasks that are tagged with each step.

    When a run resumes, all warm-up tasks are tagged with `step`, because the checkpoint's tasks have the names of
    earlier steps.
    """
    if step > 1:
        return {step: tasks} if tasks else {}
    return dict(Counter(-(place // batch_size) for place in reversed(range(tasks))))


# Limit, in batches, of the tasks that end without rows while a step waits for its batch. At the limit, the run ends.
FAILED_BATCHES = 10
# Interval at which the buffer checks for lost engines and failed sessions while it waits.
SECONDS_BETWEEN_LOOKS = 3.0


class TeamBuffer(ReplayBufferAsync):
    """verl's replay buffer with a total order of the tasks. A run that cannot continue ends instead of waiting.

    `look` raises if an engine is lost or too many sessions have failed. `refill(n)` adds n tasks.
    """

    def __init__(
        self, mode: str, v1: DictConfig, batch_size: int, refill: Callable[[int], int], look: Callable[[], None]
    ):
        """`v1`: verl's section `trainer.v1`. `batch_size`: number of tasks per step."""
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
        self._failures = 0  # tasks without rows since the last batch was sampled
        self._look = look
        self._looked = time.monotonic()

    def _terminal_eviction_reasons(
        self, global_steps: int, partition_id: str
    ) -> tuple[set[str], set[str], set[str], Counter[float]]:
        """End the run if too many tasks have no rows; verl would replace such tasks indefinitely."""
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
        """Choose the oldest tasks, in the order of their numbers within a step; verl uses the order of a set."""
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
