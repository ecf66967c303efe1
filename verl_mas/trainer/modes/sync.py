"""trainer.v1.trainer_mode=mas: every step runs its sessions to their end, and then trains on them."""

import time

import ray

from verl_mas.config.modes import SYNC
from verl_mas.config.placement import served_on, time_sliced, used_pools
from verl_mas.trainer.pools.phases import SlicesActor
from verl_mas.trainer.trainer import TeamTrainer
from verl_mas.verl_ import data_plane
from verl_mas.verl_.data_plane import Rows
from verl_mas.verl_.types import Actor, Fields


class MasTrainer(TeamTrainer):
    mode = SYNC

    _playing: list[str]  # tasks of the step whose rows are not sampled from the buffer yet

    def _engines_started(self) -> None:
        self.slices = {pool: self._slices(pool) for pool in used_pools(self.mas) if time_sliced(self.mas, pool)}

    def _slices(self, pool: str) -> Actor:
        names = served_on(self.mas, pool)
        engines = {name: (self.policies[name].engine, self.policies[name].servers) for name in names}
        return SlicesActor.start(engines, awake=names[-1])

    def prepare_step(self) -> Fields:
        self._playing = []
        return super().prepare_step()

    def _tasks_are_named(self, names: list[str]) -> None:
        self._playing += names

    def _sample(self, tasks: int) -> tuple[Rows, dict[str, float]]:
        """Wait until all tasks of the step have ended, then sample. verl's buffer would list every row at each poll, so
        only the tasks are polled."""
        while data_plane.ended(self._playing) < min(tasks, len(self._playing)):
            time.sleep(self.replay_buffer.poll_interval)
        self._playing.clear()
        return super()._sample(tasks)

    def _wake_one(self, name: str) -> None:
        """Send weights to a policy's engines. In a time-sliced pool, the engines then free the GPU for the next policy;
        the engines of the last policy stay awake."""
        super()._wake_one(name)
        pool = self.mas.policies[name].pool
        if slices := self.slices.get(pool):
            if name == served_on(self.mas, pool)[-1]:
                ray.get(slices.set_awake.remote(name))
            else:
                self.policies[name].pause()

    def _sleep(self) -> None:
        asked: dict[str, ray.ObjectRef[str]] = {
            pool: slices.finally_awake.remote() for pool, slices in self.slices.items()
        }
        awake = {pool: ray.get(answer) for pool, answer in asked.items()}
        served = [name for name in self.policies if awake.get(self.mas.policies[name].pool, name) == name]
        self.pools.each(served, self.sleep_one)
