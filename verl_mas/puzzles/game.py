"""How agents play a puzzle turn by turn: what they are shown, and how each candidate is scored on its own copy."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Literal

from verl_mas.config.values import Count
from verl_mas.puzzles.base import Puzzle
from verl_mas.puzzles.boards import board_of
from verl_mas.puzzles.scoring import DENSE, SPARSE, Judgement, judge
from verl_mas.workflow import ActionList, Malformed, Outcome, Reply, Task, Team, Workflow

REWARDS = {"dense": DENSE, "sparse": SPARSE}
COMPACT = "compact"


@dataclass(frozen=True)
class Attempt:
    """One candidate: the actions it names, and what they lead to on a copy of the puzzle."""

    actions: Sequence[str] | Malformed
    judgement: Judgement

    @property
    def readable(self) -> Sequence[str]:
        return () if isinstance(self.actions, Malformed) else self.actions


Choose = Callable[[str, Puzzle, str], Awaitable[Attempt]]


class Play(Workflow):
    """Turns on one puzzle until it is solved, lost, or `max_turns` are over.

    Override: `agents` and `turn`. The base owns the board, the scores and the outcome.
    """

    branches = True
    max_turns: Count = 4
    """Turns at most; in each every agent acts once."""

    moves: Count = 4
    """Actions that an agent may name in one act."""

    text: Literal["words", "compact"] = "words"
    """words: for language models. compact: a few tokens, for tiny ones."""

    reward: Literal["dense", "sparse"] = "dense"
    """dense: the team's and the act's own part. sparse: 1 for an act or a session that solves it, else 0."""

    async def turn(self, puzzle: Puzzle, choose: Choose) -> Puzzle:
        """The puzzle after every agent has acted once, each by `await choose(agent, puzzle, prompt)`."""
        raise NotImplementedError

    async def run(self, task: Task, team: Team) -> Outcome:
        async def choose(agent: str, puzzle: Puzzle, prompt: str) -> Attempt:
            """Branch on the prompt, score every candidate on its own copy, commit one."""
            replies = await team[agent].branch(prompt)
            attempts = await asyncio.gather(*[self.attempt(reply, puzzle, len(replies)) for reply in replies])
            return dict(zip(replies, attempts, strict=True))[team.commit(replies)]

        puzzle = board_of(task.extra_info)
        turns = 0
        while turns < self.max_turns and not puzzle.solved and puzzle.distance() is not None:
            puzzle = await self.turn(puzzle, choose)
            turns += 1
        solved = float(puzzle.solved)
        return Outcome(
            answer=puzzle.render(),
            reward=puzzle.standing() if self.reward == "dense" else solved,
            info={"acc": solved, "turns": turns},
        )

    async def attempt(self, reply: Reply, puzzle: Puzzle, among: int) -> Attempt:
        """What one of `among` candidates comes to."""
        actions = reply.parse(self.codec(puzzle))
        return self.scored(reply, actions, puzzle, among)

    def scored(self, reply: Reply, actions: Sequence[str] | Malformed, puzzle: Puzzle, among: int) -> Attempt:
        """Only a choice between candidates gives an act a team part of its own; else the session's counts."""
        judgement = judge(puzzle, actions, limit=self.moves, weights=REWARDS[self.reward])
        reply.reward = judgement.local
        if among > 1:
            reply.team_reward = judgement.team
        return Attempt(actions, judgement)

    def codec(self, puzzle: Puzzle) -> ActionList:
        """Between tags for language models, bare for tiny ones."""
        tag = None if self.text == COMPACT else "actions"
        return ActionList(puzzle.action_pattern, self.moves, tag, puzzle.action_help)

    def scene(self, puzzle: Puzzle) -> str:
        """The rules and the current state, in words."""
        return f"{puzzle.rules}\n\n{puzzle.render()}"
