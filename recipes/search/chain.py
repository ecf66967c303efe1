"""A rewriter writes queries, a reranker selects passages, an answerer answers: the team of MHGPO."""

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Literal

from verl_mas.config.values import Count
from verl_mas.environment.retrieval.corpus import Passage
from verl_mas.workflow import ActionList, Malformed, Message, Outcome, Reply, Task, Team, register_workflow
from verl_mas.workflow.task import with_instruction
from verl_mas.workflows.search_team import ANSWER, QUERY, REPLY, Searching, information, retrieved


@dataclass(frozen=True)
class ChainState:
    """The results of the agents that have acted so far."""

    agents_done: int = 0
    passages: tuple[Passage, ...] = ()
    answer: str = ""


@register_workflow("search_chain")
class SearchChain(Searching):
    """A rewriter writes queries, a reranker selects passages, an answerer answers: the team of MHGPO.

    In the chain of arXiv 2506.02718 each agent acts once. With `fork`, one act branches. Then the session
    continues with each candidate of this act, and all of these continuations are trained on."""

    agents = ("rewriter", "reranker", "answerer")
    queries: Count = 3
    """Maximum number of queries."""

    score: str = "f1"
    """The grader whose score is the reward: f1 (overlap of words), em (exact match), or a grader of your own."""

    fork: Literal["none", "first", "round_robin"] = "none"
    """The agent whose act branches. none: no agent. first: the first agent. round_robin: an agent that is sampled for
    each session."""

    @property
    def branches(self) -> bool:
        return self.forks

    @property
    def forks(self) -> bool:
        return self.fork != "none"

    async def run(self, task: Task, team: Team) -> Outcome:
        self.require_truth(task)
        drawn = {"none": None, "first": self.agents[0], "round_robin": team.random("fork").choice(self.agents)}
        return await self._play(task, drawn[self.fork], team, ChainState())

    async def _play(self, task: Task, forks: str | None, team: Team, state: ChainState) -> Outcome:
        """Play the rest of the chain."""
        for agent in self.agents[state.agents_done :]:
            prompt = self.prompt(task, agent, state)
            if agent == forks:
                replies = await team[agent].branch(prompt)
                outcomes = await team.fork(replies, partial(self._after, task), state)
                return next(end for reply, end in zip(replies, outcomes, strict=True) if reply.committed)
            state = await self.read(await team[agent].act(prompt), state)
        return await self.scored(task, state.answer)

    async def _after(self, task: Task, team: Team, candidate: Reply, state: ChainState) -> Outcome:
        return await self._play(task, None, team, await self.read(candidate, state))

    def prompt(self, task: Task, agent: str, state: ChainState) -> list[Message]:
        if agent == "rewriter":
            return with_instruction(task.messages, REWRITE.format(self.queries))
        instruction = f"{SELECT} {KEPT.prompt()}" if agent == "reranker" else REPLY
        return with_instruction(task.messages, f"{information(state.passages)}\n\n{instruction}")

    async def read(self, reply: Reply, state: ChainState) -> ChainState:
        """Return the state after an act."""
        state = replace(state, agents_done=state.agents_done + 1)
        match reply.role:
            case "rewriter":
                return replace(state, passages=await self._searched(reply))
            case "reranker":
                return replace(state, passages=_selected(reply, state.passages))
        answer = reply.parse(ANSWER)
        return replace(state, answer="" if isinstance(answer, Malformed) else answer)

    async def _searched(self, reply: Reply) -> tuple[Passage, ...]:
        text = reply.parse(QUERY)
        queries = [] if isinstance(text, Malformed) else [line.strip() for line in text.splitlines() if line.strip()]
        passages: dict[str, Passage] = {}
        for query in queries[: self.queries]:
            passages.update({passage.text: passage for passage in await retrieved(self.source(), query)})
        return tuple(passages.values())


def _selected(reply: Reply, passages: Sequence[Passage]) -> tuple[Passage, ...]:
    kept = reply.parse(KEPT)
    numbers = [] if isinstance(kept, Malformed) else [int(number) for number in kept]
    return tuple(passages[number - 1] for number in dict.fromkeys(numbers) if 1 <= number <= len(passages))


KEPT = ActionList(re.compile("[0-9]{1,3}"), 100, "keep", "the numbers of passages")
REWRITE = (
    "Do not answer the question. Write up to {} short search queries, a line each, for the facts that it needs, "
    f"and nothing else inside the tag. {QUERY.prompt()}"
)
SELECT = "Do not answer the question. Name the passages that help to answer it, the best first."
