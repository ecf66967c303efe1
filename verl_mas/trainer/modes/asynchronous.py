"""What the asynchronous modes have in common: tasks are dispatched some steps before they are trained on.

A task has the step of its dispatch: its age is counted from there, and the oldest tasks make the next batch. Those of
the warm-up have the steps before the first, as if the run had been going on. With W warm-up batches, `wait` and a
threshold of W + 1, the batch of a step is therefore the one that was dispatched W steps before, whatever the timing.
"""

from __future__ import annotations

import logging
from collections import Counter, defaultdict
from contextlib import suppress
from typing import TYPE_CHECKING

from ray.exceptions import RayActorError
from verl.workers.rollout.llm_server import LLMServerClient

from verl_mas import data_plane
from verl_mas.rollout.counts import SessionCounts
from verl_mas.row import FINISHED, GLOBAL_STEPS, STATUS
from verl_mas.trainer.team_buffer import TeamBuffer
from verl_mas.trainer.trainer import TeamTrainer

if TYPE_CHECKING:
    from omegaconf import DictConfig

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
        size: int = self.config.data.train_batch_size
        return size

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
        steps: int = self.total_training_steps - self.global_steps + 1
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


def warm_up(tasks: int, batch_size: int, step: int) -> dict[int, int]:
    """How many tasks of those that are dispatched before `step` have which step, the oldest first.

    In a run that resumes they are new tasks, and those of earlier steps have their names.
    """
    if step > 1:
        return {step: tasks} if tasks else {}
    return dict(Counter(-(place // batch_size) for place in reversed(range(tasks))))
