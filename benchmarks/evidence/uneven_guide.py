"""Guide and driver, where the guide has a reward of its own, whatever it writes."""

from __future__ import annotations

from verl_mas.config.hydra.recipe.guide_driver.team import Drive, GuideDriver
from verl_mas.workflow import Reply


class UnevenGuide(GuideDriver):
    """Split-view Plan-Path in which the guide's own reward is `offset`."""

    offset: float = 0.0

    def after(self, reply: Reply, state: Drive) -> Drive:
        if reply.agent == "guide":
            reply.reward = self.offset
        return super().after(reply, state)
