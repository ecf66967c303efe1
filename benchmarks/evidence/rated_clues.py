"""Split clues whose messages are rated: a rule with errors, in the place of the LLM that rates in the workflow `rated`.

So the ratings have a known accuracy, and cost no replies.
"""

from __future__ import annotations

import random

from verl_mas.config.hydra.recipe.split_clues.clues import SplitClues, Talk
from verl_mas.config.values import Share
from verl_mas.workflow import Reply


class RatedClues(SplitClues):
    """The own reward of a message is 1 if it names the sender's letters, else 0; in the share `errs` it is the other of
    the two. The same message of the same sender has the same rating, as a model without sampling would give."""

    errs: Share = 0.2

    def after(self, reply: Reply, state: Talk) -> Talk:
        after = super().after(reply, state)
        if not state.last:
            right = set(after.written[-1]) == set(state.part)
            errs = random.Random(f"{state.part}/{state.speaker}/{reply.text}").random() < self.errs
            reply.reward = float(right is not errs)
        return after
