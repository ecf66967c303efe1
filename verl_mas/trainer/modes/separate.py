"""trainer.v1.trainer_mode=mas_separate_async: policies train on GPUs of their own while their engines serve on."""

from __future__ import annotations

from verl_mas.config.modes import SEPARATE
from verl_mas.trainer.modes.asynchronous import AsyncTeamTrainer
from verl_mas.trainer.separate_policy import SeparatePolicy


class SeparateAsyncTrainer(AsyncTeamTrainer):
    mode = SEPARATE

    def on_init_end(self) -> None:
        # One after the other: the first transfer of a policy makes its group of processes.
        for member in self.members.values():
            member.wake(self.global_steps)

    def _sleep(self) -> None:
        """Engines serve all the time."""

    def _wake(self) -> None:
        """Send each trained policy's weights; engines of frozen ones are not touched."""
        self.pools.each([name for name, m in self.members.items() if isinstance(m, SeparatePolicy)], self._wake_one)

    def _wake_one(self, name: str) -> None:
        """Sessions that call other policies go on meanwhile."""
        self.agent_loop_manager.pause([name])
        self.members[name].wake(self.global_steps)
        self.agent_loop_manager.resume([name])
