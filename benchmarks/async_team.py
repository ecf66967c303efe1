"""The team of `benchmarks.async_modes`. Sessions have log-normal lengths, which are the same in every mode."""

from __future__ import annotations

import asyncio
import math
import random

from verl_mas.workflow import Outcome, Task, Team, Workflow


class LongTail(Workflow):
    """Two agents take turns. Before each act there is a wait, as for a tool. Task, session number and seed determine
    the length of a session."""

    agents = ("first", "second")
    mean: float = 200.0
    """Mean number of tokens of a session."""

    sigma: float = 1.0
    longest: int = 4000
    act: int = 128
    """Tokens of an act. The last act has the tokens that remain."""

    wait: float = 0.0
    """Seconds before each act."""

    seed: int = 0

    async def run(self, task: Task, team: Team) -> Outcome:
        name = f"{self.seed}/{task.extra_info['index']}/{task.session}"
        acts = acts_of(session_tokens(name, self.mean, self.sigma, self.longest), self.act)
        for number, tokens in enumerate(acts):
            await asyncio.sleep(self.wait)
            agent = (team.first, team.second)[number % 2]
            reply = await agent.act(task.messages, max_tokens=tokens, ignore_eos=True)
        return Outcome(answer=reply, reward=random.random())


def session_tokens(session: str, mean: float, sigma: float, longest: int) -> int:
    whole = random.Random(session).lognormvariate(math.log(mean) - sigma**2 / 2, sigma)
    return max(1, min(round(whole), longest))


def acts_of(tokens: int, act: int) -> list[int]:
    whole, rest = divmod(tokens, act)
    return [act] * whole + ([rest] if rest else [])
