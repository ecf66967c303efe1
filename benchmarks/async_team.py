"""The team of `benchmarks.async_modes`: sessions of log-normal length, the same in every mode."""

from __future__ import annotations

import asyncio
import math
import random

from verl_mas.workflow import Outcome, Task, Team, Workflow


class LongTail(Workflow):
    """Two acts of equal length, each after a wait for a tool. Task, session number and seed choose the length."""

    agents = ("first", "second")
    mean: float = 200.0
    """Tokens of a session."""

    sigma: float = 1.0
    longest: int = 4000
    wait: float = 0.0
    """Seconds before each act."""

    seed: int = 0

    async def run(self, task: Task, team: Team) -> Outcome:
        tokens = act_tokens(
            f"{self.seed}/{task.extra_info['index']}/{task.session}", self.mean, self.sigma, self.longest
        )
        for agent in (team.first, team.second):
            await asyncio.sleep(self.wait)
            reply = await agent.act(task.messages, max_tokens=tokens, ignore_eos=True)
        return Outcome(answer=reply, reward=random.random())


def act_tokens(session: str, mean: float, sigma: float, longest: int) -> int:
    whole = random.Random(session).lognormvariate(math.log(mean) - sigma**2 / 2, sigma)
    return max(1, min(round(whole / 2), longest // 2))
