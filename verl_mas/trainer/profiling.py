"""verl's profiler, for the training processes and engines of every policy."""

from __future__ import annotations

from typing import TYPE_CHECKING

from verl.trainer.ppo.v1.trainer_base import PPOTrainer

if TYPE_CHECKING:
    from verl_mas.trainer.policies.local_policy import LocalPolicy

_STATE = ("prev_step_profile", "curr_step_profile", "next_step_profile")


class Profiled(PPOTrainer):
    """A trainer of several policies."""

    @property
    def training(self) -> dict[str, LocalPolicy]:
        raise NotImplementedError

    def _start_profiling(self) -> None:
        for policy in self.training.values():
            self._copy_profile_state(policy)
            policy._start_profiling()  # noqa: SLF001

    def _stop_profiling(self) -> None:
        for policy in self.training.values():
            self._copy_profile_state(policy)
            policy._stop_profiling()  # noqa: SLF001
        for name in _STATE:
            setattr(self, name, getattr(policy, name))

    def _copy_profile_state(self, policy: LocalPolicy) -> None:
        for name in ("global_steps", *_STATE):
            setattr(policy, name, getattr(self, name))
