"""Split clues in which the agents' rewards differ, in one of three ways: in their mean, scale or frequency.

As a plugin, this module also registers `scaled_team_grpo` and `scaled_agent_grpo`. They multiply the deviation of the
sender's scores from their mean in the task.
"""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Literal

import torch

from verl_mas.advantage.estimator import ESTIMATORS, estimator
from verl_mas.advantage.kernel import moments
from verl_mas.advantage.options import AdvantageOptions
from verl_mas.advantage.record import AdvantageInput, AdvantageOutput
from verl_mas.config.hydra.recipe.split_clues.clues import LETTERS, SplitClues, Talk, clues_of
from verl_mas.config.values import Share
from verl_mas.workflow import Outcome, Reply, Task, Team

SENDER = "sender"
FACTOR = 10.0


class UnevenClues(SplitClues):
    """Split clues whose sender has its own reward, `offset`, and acts in a share `called` of the training sessions.

    In the other training sessions, the receiver reads a message that no agent wrote: random letters, or with
    `otherwise="clues"` the letters that the sender's clues leave.
    """

    offset: float = 0.0
    called: Share = 1.0
    otherwise: Literal["random", "clues"] = "random"

    async def run(self, task: Task, team: Team) -> Outcome:
        rng = random.Random(f"{task.extra_info.get('index')}/{task.step}/{task.session}")
        talk = self.opening(clues_of(task.extra_info, task.ground_truth, self.parts), rng)
        if not task.validate and rng.random() >= self.called:
            talk = talk.after(talk.part if self.otherwise == "clues" else "".join(rng.sample(LETTERS, len(talk.part))))
        return await self.play(talk, team)

    def after(self, reply: Reply, state: Talk) -> Talk:
        if reply.agent == SENDER:
            reply.reward = self.offset
        return super().after(reply, state)


@estimator(compares_sessions=True, weighting="per_session")
def scaled_team_grpo(batch: AdvantageInput, options: AdvantageOptions) -> AdvantageOutput:
    """Compute `team_grpo` with the sender's scores scaled."""
    return ESTIMATORS["team_grpo"].function(scaled(batch), options)


@estimator(compares_sessions=True)
def scaled_agent_grpo(batch: AdvantageInput, options: AdvantageOptions) -> AdvantageOutput:
    """Compute `agent_grpo` with the sender's scores scaled, which gives the same advantages."""
    return ESTIMATORS["agent_grpo"].function(scaled(batch), options)


def scaled(batch: AdvantageInput) -> AdvantageInput:
    """Multiply the deviation of the sender's scores from their mean in the task by `FACTOR`. The mean is unchanged."""
    own = batch.partition("task", "agent")
    centred = moments(batch.scores.double(), own, "population")[0]
    agents = batch.codes("agent")
    sends = torch.tensor([name == SENDER for name in agents.names])[agents.ids]
    return replace(batch, scores=(batch.scores + (FACTOR - 1) * centred * sends).float())
