"""A rewriter writes queries, a reranker selects passages, an answerer answers: the team of MHGPO."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Literal

from verl_mas.config.values import Count
from verl_mas.grading.qa import exact_match, f1, golden_answers
from verl_mas.retrieval.corpus import Passage
from verl_mas.workflow import (
    ActionList,
    Malformed,
    Message,
    Outcome,
    Reply,
    Task,
    Team,
    register_workflow,
    with_instruction,
)
from verl_mas.workflows.search_team import ANSWER, QUERY, REPLY, Searching, information, retrieved

REWRITER, RERANKER, ANSWERER = "rewriter", "reranker", "answerer"


@dataclass(frozen=True)
class Found:
    """What the agents before this one have found."""

    agents_done: int = 0
    passages: tuple[Passage, ...] = ()
    answer: str = ""


@register_workflow("search_chain")
class SearchChain(Searching):
    """The chain of arXiv 2506.02718: each agent acts once. With `fork` one act branches, and all its candidates are
    played on and trained on.
    """

    agents = (REWRITER, RERANKER, ANSWERER)
    queries: Count = 3
    """Queries at most."""

    score: str = "f1"
    """The grader whose score is the reward: f1 (overlap of words), em (exact match), or one of your own."""

    fork: Literal["none", "first", "round_robin"] = "none"
    """The agent whose act branches: none, the first one, or one that is drawn for the session."""

    @property
    def branches(self) -> bool:
        return self.forks

    @property
    def forks(self) -> bool:
        return self.fork != "none"

    async def run(self, task: Task, team: Team) -> Outcome:
        # A row without a ground truth is refused before an agent acts.
        self.grader().read(task.ground_truth)
        drawn = {"none": None, "first": self.agents[0], "round_robin": team.random("fork").choice(self.agents)}
        return await self._play(task, drawn[self.fork], team, Found())

    async def _play(self, task: Task, forks: str | None, team: Team, found: Found) -> Outcome:
        """The rest of the chain."""
        for agent in self.agents[found.agents_done :]:
            prompt = self.prompt(task, agent, found)
            if agent == forks:
                replies = await team[agent].branch(prompt)
                outcomes = await team.fork(replies, partial(self._after, task), found)
                return next(end for reply, end in zip(replies, outcomes, strict=True) if reply.committed)
            found = await self.read(await team[agent].act(prompt), found)
        return await self.outcome(task, found.answer)

    async def _after(self, task: Task, team: Team, candidate: Reply, found: Found) -> Outcome:
        return await self._play(task, None, team, await self.read(candidate, found))

    def prompt(self, task: Task, agent: str, found: Found) -> list[Message]:
        if agent == REWRITER:
            return with_instruction(task.messages, REWRITE.format(self.queries))
        instruction = f"{SELECT} {KEPT.prompt()}" if agent == RERANKER else REPLY
        return with_instruction(task.messages, f"{information(found.passages)}\n\n{instruction}")

    async def read(self, reply: Reply, found: Found) -> Found:
        """What is known after an act."""
        read = {REWRITER: self._search, RERANKER: self._select, ANSWERER: self._answer}[reply.role]
        return replace(await read(reply, found), agents_done=found.agents_done + 1)

    async def _search(self, reply: Reply, found: Found) -> Found:
        text = reply.parse(QUERY)
        queries = [] if isinstance(text, Malformed) else [line.strip() for line in text.splitlines() if line.strip()]
        passages: dict[str, Passage] = {}
        for query in queries[: self.queries]:
            passages.update({passage.text: passage for passage in await retrieved(self.source(), query)})
        return replace(found, passages=tuple(passages.values()))

    async def _select(self, reply: Reply, found: Found) -> Found:
        kept = reply.parse(KEPT)
        numbers: Sequence[int] = [] if isinstance(kept, Malformed) else [int(number) for number in kept]
        wanted = [number for number in dict.fromkeys(numbers) if 1 <= number <= len(found.passages)]
        return replace(found, passages=tuple(found.passages[number - 1] for number in wanted))

    async def _answer(self, reply: Reply, found: Found) -> Found:
        answer = reply.parse(ANSWER)
        return replace(found, answer="" if isinstance(answer, Malformed) else answer)

    async def outcome(self, task: Task, answer: str) -> Outcome:
        grader, golden = self.grader(), golden_answers(task.ground_truth)
        return Outcome(
            answer=answer,
            reward=(await grader(grader.read(task.ground_truth), answer) or 0.0) if answer else 0.0,
            info={
                "em": exact_match(answer, golden) if answer else 0.0,
                "f1": f1(answer, golden) if answer else 0.0,
            },
        )


KEPT = ActionList(re.compile("[0-9]{1,3}"), 100, "keep", "the numbers of passages")
REWRITE = (
    "Do not answer the question. Write up to {} short search queries, a line each, for the facts that it needs, "
    f"and nothing else inside the tag. {QUERY.prompt()}"
)
SELECT = "Do not answer the question. Name the passages that help to answer it, the best first."
