"""trainer.v1.trainer_mode=mas_colocate_async: engines and training take turns on the same devices.

When enough tasks have ended, all engines are aborted and sleep while the policies are trained. Acts that are cut keep
their tokens and continue under the new weights; the rest of a session does not notice.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

from verl_mas.config.modes import COLOCATED
from verl_mas.trainer import timeline
from verl_mas.trainer.modes.asynchronous import AsyncTeamTrainer


class ColocatedAsyncTrainer(AsyncTeamTrainer):
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
