"""Guide and driver with a constant extra reward for the guide, which does not depend on its message."""

from __future__ import annotations

from verl_mas.config.hydra.recipe.guide_driver.team import Drive, GuideDriver
from verl_mas.workflow import Reply


class UnevenGuide(GuideDriver):
    """Plan-Path with a split view, in which the guide's own reward is always `offset`."""

    offset: float = 0.0

    def after(self, reply: Reply, state: Drive) -> Drive:
        if reply.agent == "guide":
            reply.reward = self.offset
        return super().after(reply, state)
