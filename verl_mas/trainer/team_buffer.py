"""Samples the batches of the asynchronous modes."""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Callable

from omegaconf import DictConfig
from verl.trainer.ppo.v1.replay_buffer import ReplayBufferAsync

from verl_mas.data_plane import TRAIN
from verl_mas.errors import SessionsFailed
from verl_mas.row import TagValues

# A child of verl's logger, which has the handler in the trainer's process.
logger = logging.getLogger(f"verl.{__name__}")

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
            poll_interval=sampler.sampler_kwargs.get("poll_interval", 2.0),
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
            logger.info("the oldest task that has not ended: %s", self._oldest(partition_id))
        return last

    def _oldest(self, partition_id: str) -> str:
        steps = self.prompt_global_steps[partition_id]
        out = self.pending_keys[partition_id] | self.running_keys[partition_id]
        oldest = min(out, key=lambda uid: (steps[uid], len(uid), uid), default=None)
        return "none" if oldest is None else f"{oldest}, dispatched at step {steps[oldest]}"
