"""Split clues whose messages are rated by a rule with errors, instead of the LLM of the workflow `rated`.

So the ratings have a known accuracy, and cost no replies.
"""

from __future__ import annotations

import random

from verl_mas.config.hydra.recipe.split_clues.clues import SplitClues, Talk
from verl_mas.config.values import Share
from verl_mas.workflow import Reply


class RatedClues(SplitClues):
    """Each message has its own reward: 1 if it names the sender's letters, else 0.

    In a share `errs` of the messages, the reward is inverted. If a sender repeats a message, it gets the same rating,
    as from a model without sampling.
    """

    errs: Share = 0.2

    def after(self, reply: Reply, state: Talk) -> Talk:
        after = super().after(reply, state)
        if not state.last:
            right = set(after.written[-1]) == set(state.part)
            errs = random.Random(f"{state.part}/{state.speaker}/{reply.text}").random() < self.errs
            reply.reward = float(right is not errs)
        return after
