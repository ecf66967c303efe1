"""The reward of one act on a puzzle: a team part, and local parts that are checked by program."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from verl_mas.gym.puzzles.base import Puzzle
from verl_mas.workflow.codecs import Malformed


@dataclass(frozen=True)
class Weights:
    """Weights of the local parts."""

    format: float = 0.1
    legal: float = 0.1
    progress: float = 0.8


DENSE = Weights()
# Only the team reward.
SPARSE = None


@dataclass(frozen=True, slots=True)
class ActionScore:
    """The result of one act's actions on a copy of the puzzle."""

    after: Puzzle
    team: float
    local: float
    # None: the reply was not a list of actions.
    legal_share: float | None


@dataclass(frozen=True, slots=True)
class Played:
    """A copy of a puzzle after some actions: how many were applied, and how many of those were legal."""

    after: Puzzle
    tried: int
    legal: int


def played(puzzle: Puzzle, actions: Sequence[str], limit: int) -> Played:
    """Up to `limit` actions on a copy of the puzzle, until it is solved."""
    after = puzzle.copy()
    tried = legal = 0
    for action in actions[:limit]:
        if after.solved:
            break
        tried += 1
        legal += after.step(action)
    return Played(after, tried, legal)


def score_actions(
    puzzle: Puzzle, actions: Sequence[str] | Malformed, *, limit: int, weights: Weights | None = DENSE
) -> ActionScore:
    """Try up to `limit` actions on a copy of the puzzle.

    Solving gives a team reward of 1. Otherwise rewards are differences of a state's value, so actions that return to
    the same state earn nothing. Format and legality are penalties: the paper's rewards minus a constant, which cancels
    within a group of one prompt.
    """
    if isinstance(actions, Malformed):
        return ActionScore(puzzle.copy(), 0.0, -(weights.format + weights.legal) if weights else 0.0, None)
    done = played(puzzle, actions, limit)
    after = done.after
    share = done.legal / done.tried if done.tried else 1.0
    if weights is None:
        return ActionScore(after, float(after.solved), 0.0, share)
    team = 1.0 if after.solved else after.value() - puzzle.value()
    nearer = (puzzle.bounded_distance() - after.bounded_distance()) / limit
    local = weights.legal * (share - 1.0) + weights.progress * nearer
    return ActionScore(after, team, local, share)
