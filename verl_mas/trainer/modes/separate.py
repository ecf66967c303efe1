"""trainer.v1.trainer_mode=mas_separate_async: policies train on GPUs of their own while their engines serve on."""

from __future__ import annotations

from verl_mas.config.modes import SEPARATE
from verl_mas.trainer.modes.asynchronous import AsyncTeamTrainer
from verl_mas.trainer.policies.separate import SeparatePolicy
from verl_mas.verl_.types import Actor


class SeparateAsyncTrainer(AsyncTeamTrainer):
    mode = SEPARATE

    @property
    def _apart(self) -> dict[str, SeparatePolicy]:
        return {name: member for name, member in self.members.items() if isinstance(member, SeparatePolicy)}

    def _actors(self) -> dict[str, list[Actor]]:
        receivers = {f"weight receiver {{}} of policy {name}": one.receivers for name, one in self._apart.items()}
        return {**super()._actors(), **receivers}

    def on_init_end(self) -> None:
        # One after the other: the first transfer of a policy makes its group of processes.
        for member in self.members.values():
            member.wake(self.global_steps)

    def _sleep(self) -> None:
        """Engines serve all the time."""

    def _wake(self) -> None:
        """Also a policy without rows gets its weights, and with them the step. Frozen engines are not touched."""
        self.pools.each(self._apart, self._wake_one)

    def _wake_one(self, name: str) -> None:
        """Sessions that call other policies continue meanwhile."""
        self.agent_loop_manager.pause([name])
        super()._wake_one(name)
        self.agent_loop_manager.resume([name])
