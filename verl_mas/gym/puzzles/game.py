"""The base of workflows that play a puzzle in turns; each candidate is scored on its own copy of the puzzle."""

from __future__ import annotations

import asyncio
import itertools
import random
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Annotated, Literal

from verl_mas.config.values import Count, Range
from verl_mas.errors import ConfigError, WorkflowError
from verl_mas.gym.puzzles.puzzle import Puzzle, board_of
from verl_mas.util.loops import together
from verl_mas.workflow import ActionList, Malformed, Outcome, Reply, Task, Team, Workflow, restored

FORMAT, LEGAL, PROGRESS = 0.1, 0.1, 0.8  # weights of the parts of an act's own reward
COMPACT = "compact"


@dataclass(frozen=True)
class PuzzleAttempt:
    """One candidate: its actions, the board after them, and its two rewards."""

    actions: Sequence[str] | Malformed
    after: Puzzle
    team: float
    local: float

    @property
    def readable(self) -> Sequence[str]:
        return () if isinstance(self.actions, Malformed) else self.actions


def played(puzzle: Puzzle, actions: Sequence[str], limit: int) -> tuple[Puzzle, float]:
    """Apply up to `limit` actions to a copy of the puzzle, until it is solved. Returns the copy and the share of legal
    actions."""
    after = puzzle.copy()
    tried = legal = 0
    for action in actions[:limit]:
        if after.solved:
            break
        tried += 1
        legal += after.step(action)
    return after, legal / tried if tried else 1.0


def score_actions(
    puzzle: Puzzle, actions: Sequence[str] | Malformed, *, limit: int, dense: bool = True
) -> PuzzleAttempt:
    """Try up to `limit` actions on a copy of the puzzle.

    Solving gives a team reward of 1. Otherwise rewards are differences of a state's value, so actions that return to
    the same state get no reward. Format and legality give penalties, which are the rewards of the AT-GRPO paper minus a
    constant. The constant cancels in the advantages, because the acts of a group have the same prompt.
    """
    if isinstance(actions, Malformed):
        return PuzzleAttempt(actions, puzzle.copy(), 0.0, -(FORMAT + LEGAL) if dense else 0.0)
    after, share = played(puzzle, actions, limit)
    if not dense:
        return PuzzleAttempt(actions, after, float(after.solved), 0.0)
    team = 1.0 if after.solved else after.value() - puzzle.value()
    nearer = (puzzle.bounded_distance() - after.bounded_distance()) / limit
    return PuzzleAttempt(actions, after, team, LEGAL * (share - 1.0) + PROGRESS * nearer)


Choose = Callable[[str, Puzzle, str], Awaitable[PuzzleAttempt]]  # (agent, puzzle, prompt) -> the committed attempt
Place = tuple[int, int]  # the index of a turn, and of an act in it


@dataclass
class Position:
    """The state of a game: the puzzle at the start of a turn, and the attempts committed since then, with their agents.

    To continue a turn, `turn` is called again from its start, and reuses these attempts in place of new acts.
    """

    puzzle: Puzzle
    turns: int = 0
    attempts: dict[Place, tuple[str, PuzzleAttempt]] = field(default_factory=dict)
    facing: Puzzle | None = None  # for a continued candidate: the puzzle on which its agent acted

    def copy(self) -> Position:
        attempts = {
            place: (agent, replace(attempt, after=restored(attempt.after)))
            for place, (agent, attempt) in self.attempts.items()
        }
        return Position(restored(self.puzzle), self.turns, attempts, restored(self.facing))

    def reseed(self, rng: random.Random) -> None:
        """Reseed later random events, so that this copy does not reveal the later events of the original."""
        for puzzle in (self.puzzle, self.facing, *(attempt.after for _, attempt in self.attempts.values())):
            if puzzle is not None:
                puzzle.reseed(rng)

    def now(self, facing: Puzzle) -> Position:
        """Return the position before an act of this turn."""
        of_turn = {place: attempt for place, attempt in self.attempts.items() if place[0] == self.turns}
        return Position(self.puzzle, self.turns, of_turn, facing)

    def again(self, place: Place, agent: str) -> PuzzleAttempt:
        then, attempt = self.attempts[place]
        if agent != then:
            value = f"act {place[1]} of a turn was by {then}, and by {agent} when the turn was called again"
            rule = "a candidate is played on by calling `turn` again, which asks the same agents in the same order"
            fix = "let the order depend on the puzzle and on earlier attempts alone"
            raise WorkflowError(value, rule=rule, fix=fix)
        return attempt


class Play(Workflow):
    """Plays one puzzle until it is solved, cannot be solved, or `max_turns` are over. Override `agents` and `turn`. The
    base class owns the board, the scores and the outcome."""

    branches = True
    max_turns: Count = 4
    """The maximum number of turns. In a turn every agent acts once."""

    moves: Count = 4
    """The maximum number of actions in one reply."""

    text: Literal["words", "compact"] = "words"
    """words: prompts for language models. compact: prompts of a few tokens, for tiny models."""

    reward: Literal["dense", "sparse"] = "dense"
    """dense: each act has a team reward and a local reward. sparse: an act or a session that solves the puzzle has the
    reward 1, any other the reward 0."""

    continuations: Annotated[int, Range(0, 64)] = 0
    """Number of continuations of each candidate to the end of the session. The candidate's reward is the mean of their
    outcomes. 0: the candidate is scored by its actions."""

    fork: Literal["none", "first", "round_robin"] = "none"
    """The act that forks: all of its candidates are continued to the end, and all continuations are trained on. first:
    the first act of the session. round_robin: the first act of an agent that is sampled for the session. none: every
    act branches, and no act forks."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.continuations and self.forks:
            value = f"mas.workflow.args.fork={self.fork} with mas.workflow.args.continuations={self.continuations}"
            rule = "the candidates of a fork are all played on by acts that are trained on, which scores them"
            fix = "set mas.workflow.args.continuations=0, or mas.workflow.args.fork=none"
            raise ConfigError(value, rule=rule, fix=fix)

    @property
    def probes(self) -> bool:
        return self.continuations > 0

    @property
    def forks(self) -> bool:
        return self.fork != "none"

    @property
    def dense(self) -> bool:
        """Whether an act has a reward of its own; with continuations, only the outcome counts."""
        return self.reward == "dense" and not self.probes

    async def turn(self, puzzle: Puzzle, choose: Choose) -> Puzzle:
        """Play one turn and return the puzzle after it. Each agent acts by `await choose(agent, puzzle, prompt)`."""
        raise NotImplementedError

    async def run(self, task: Task, team: Team) -> Outcome:
        puzzle = board_of(task.extra_info)
        puzzle.reseed(team.random("chance"))
        return await self._play(team, Position(puzzle))

    async def _play(self, team: Team, at: Position) -> Outcome:
        """Play to the end, from any position."""
        if not at.turns:
            team.draw(at.puzzle.render, "start")
        while at.turns < self.max_turns and not at.puzzle.solved and at.puzzle.distance() is not None:
            at.puzzle = await self.turn(at.puzzle, partial(self._choose, team, at, itertools.count()))
            at.turns += 1
            team.draw(at.puzzle.render, f"after turn {at.turns}")
        solved = float(at.puzzle.solved)
        reward = at.puzzle.value() if self.reward == "dense" else solved
        return Outcome(answer=at.puzzle.render(), reward=reward, info={"acc": solved, "turns": at.turns})

    async def _choose(
        self, team: Team, at: Position, numbers: Iterator[int], agent: str, puzzle: Puzzle, prompt: str
    ) -> PuzzleAttempt:
        """Sample candidates for the prompt, score each on its own copy, and commit one."""
        place = at.turns, next(numbers)
        if place in at.attempts:
            return at.again(place, agent)
        replies = await team[agent].branch(prompt) if self._branches(team, agent) else [await team[agent].act(prompt)]
        scored = [self.attempt(reply, self._board(team, puzzle, reply), len(replies)) for reply in replies]
        attempts = dict(zip(replies, await asyncio.gather(*scored), strict=True))
        courses: dict[Reply, Position] = {}

        async def play_on(team: Team, reply: Reply, state: Position) -> Outcome:
            courses[reply] = state
            assert state.facing is not None
            state.attempts[place] = agent, self._taken(attempts[reply], state.facing)
            return await self._play(team, state)

        if self.forks and len(replies) > 1:
            await team.fork(replies, play_on, at.now(puzzle))
            # The session continues with the committed fork.
            at.attempts |= next(courses[reply].attempts for reply in replies if reply.committed)
            return at.again(place, agent)
        if self.probes:
            now = at.now(puzzle)
            await together([partial(team.continue_from, reply, play_on, now, self.continuations) for reply in replies])
        attempt = self._taken(attempts[team.commit(replies)], puzzle)
        at.attempts[place] = agent, attempt
        return attempt

    def _branches(self, team: Team, agent: str) -> bool:
        return self.fork != "round_robin" or agent == team.random("fork").choice(self.agents)

    def _board(self, team: Team, puzzle: Puzzle, reply: Reply) -> Puzzle:
        """Return the board on which a candidate is scored. If there are several candidates, the board must not reveal
        later random events."""
        if reply.among == 1 or not puzzle.chance:
            return puzzle
        board = puzzle.copy()
        board.reseed(team.random(f"{reply.agent}/{reply.turn}/{reply.branch}"))
        return board

    def _taken(self, attempt: PuzzleAttempt, puzzle: Puzzle) -> PuzzleAttempt:
        """Return the attempt with its result on this board."""
        if not puzzle.chance:
            return replace(attempt, after=restored(attempt.after))
        return replace(attempt, after=played(puzzle, attempt.readable, self.moves)[0])

    async def attempt(self, reply: Reply, puzzle: Puzzle, among: int) -> PuzzleAttempt:
        """Read and score one of `among` candidates."""
        actions = reply.parse(self.codec(puzzle))
        return self.scored(reply, actions, puzzle, among)

    def scored(self, reply: Reply, actions: Sequence[str] | Malformed, puzzle: Puzzle, among: int) -> PuzzleAttempt:
        """Set the reply's own reward. Set its team reward, too, if it is one of several candidates that are neither
        continued nor forked. A single candidate gets the session's reward as its team reward."""
        attempt = score_actions(puzzle, actions, limit=self.moves, dense=self.dense)
        reply.reward = attempt.local
        if among > 1 and not self.probes and not self.forks:
            reply.team_reward = attempt.team
        return attempt

    def codec(self, puzzle: Puzzle) -> ActionList:
        """Return the codec of replies: between tags for language models, without tags for tiny models."""
        tag = None if self.text == COMPACT else "actions"
        return ActionList(puzzle.action_pattern, self.moves, tag, puzzle.action_help)

    def scene(self, puzzle: Puzzle) -> str:
        """Describe the rules and the current state, for language models."""
        return f"{' '.join([puzzle.rules, puzzle.chance]).rstrip()}\n\n{puzzle.render()}"
