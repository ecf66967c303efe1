"""What one act on a puzzle earns: the team's part and the act's own, checkable parts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from verl_mas.puzzles.base import Puzzle
from verl_mas.workflow.codecs import Malformed


@dataclass(frozen=True)
class Weights:
    """How much each checkable part of an act counts."""

    format: float = 0.1
    legal: float = 0.1
    progress: float = 0.8


DENSE = Weights()
# The team's reward alone.
SPARSE = None


@dataclass(frozen=True, slots=True)
class Judgement:
    """One act, tried on a copy."""

    after: Puzzle
    team: float
    local: float
    # None: the reply was not a list of actions.
    legal_share: float | None


def judge(
    puzzle: Puzzle, actions: Sequence[str] | Malformed, *, limit: int, weights: Weights | None = DENSE
) -> Judgement:
    """Try up to `limit` actions on a copy of the puzzle.

    Solving earns the team 1. Everything else is a difference of a value of the state, minus what was
    malformed or illegal; so who carries the actions out earns nothing by walking in circles. Format and
    legality are counted as what is missing, a constant less than the paper's, which no group of one prompt sees.
    """
    after = puzzle.copy()
    if isinstance(actions, Malformed):
        return Judgement(after, 0.0, -(weights.format + weights.legal) if weights else 0.0, None)
    tried = legal = 0
    for action in actions[:limit]:
        if after.solved:
            break
        tried += 1
        legal += after.step(action)
    share = legal / tried if tried else 1.0
    if weights is None:
        return Judgement(after, float(after.solved), 0.0, share)
    team = 1.0 if after.solved else after.standing() - puzzle.standing()
    nearer = (puzzle.to_go() - after.to_go()) / limit
    local = weights.legal * (share - 1.0) + weights.progress * nearer
    return Judgement(after, team, local, share)
