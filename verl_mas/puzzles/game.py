"""The base of workflows that play a puzzle in turns; each candidate is scored on its own copy of the puzzle."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Literal

from verl_mas.config.values import Count
from verl_mas.puzzles.base import Puzzle
from verl_mas.puzzles.boards import board_of
from verl_mas.puzzles.scoring import DENSE, SPARSE, ActionScore, score_actions
from verl_mas.workflow import ActionList, Malformed, Outcome, Reply, Task, Team, Workflow

REWARDS = {"dense": DENSE, "sparse": SPARSE}
COMPACT = "compact"


@dataclass(frozen=True)
class Attempt:
    """One candidate: its actions and their score."""

    actions: Sequence[str] | Malformed
    score: ActionScore

    @property
    def readable(self) -> Sequence[str]:
        return () if isinstance(self.actions, Malformed) else self.actions


# (agent, puzzle, prompt) -> the committed attempt.
Choose = Callable[[str, Puzzle, str], Awaitable[Attempt]]


class Play(Workflow):
    """Plays one puzzle until it is solved, cannot be solved, or `max_turns` are over.

    Override `agents` and `turn`. The base class owns the board, the scores and the outcome.
    """

    branches = True
    max_turns: Count = 4
    """The maximum number of turns. In a turn every agent acts once."""

    moves: Count = 4
    """The maximum number of actions in one reply."""

    text: Literal["words", "compact"] = "words"
    """words: prompts for language models. compact: prompts of a few tokens, for tiny models."""

    reward: Literal["dense", "sparse"] = "dense"
    """dense: a team part and a local part per act. sparse: 1 for an act or a session that solves the puzzle, else 0."""

    @property
    def sparse(self) -> bool:
        return self.reward == "sparse"

    async def turn(self, puzzle: Puzzle, choose: Choose) -> Puzzle:
        """The puzzle after one turn. Each agent acts by `await choose(agent, puzzle, prompt)`."""
        raise NotImplementedError

    async def run(self, task: Task, team: Team) -> Outcome:
        async def choose(agent: str, puzzle: Puzzle, prompt: str) -> Attempt:
            """Sample candidates for the prompt, score each on its own copy, commit one."""
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
            reward=puzzle.value() if self.reward == "dense" else solved,
            info={"acc": solved, "turns": turns},
        )

    async def attempt(self, reply: Reply, puzzle: Puzzle, among: int) -> Attempt:
        """Read and score one of `among` candidates."""
        actions = reply.parse(self.codec(puzzle))
        return self.scored(reply, actions, puzzle, among)

    def scored(self, reply: Reply, actions: Sequence[str] | Malformed, puzzle: Puzzle, among: int) -> Attempt:
        """Set the reply's rewards. Without other candidates the act's team reward is the session's."""
        score = score_actions(puzzle, actions, limit=self.moves, weights=REWARDS[self.reward])
        reply.reward = score.local
        if among > 1:
            reply.team_reward = score.team
        return Attempt(actions, score)

    def codec(self, puzzle: Puzzle) -> ActionList:
        """The format of replies: between tags for language models, without tags for tiny ones."""
        tag = None if self.text == COMPACT else "actions"
        return ActionList(puzzle.action_pattern, self.moves, tag, puzzle.action_help)

    def scene(self, puzzle: Puzzle) -> str:
        """The rules and the current state, as a prompt for language models."""
        return f"{puzzle.rules}\n\n{puzzle.render()}"
