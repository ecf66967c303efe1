"""Demonstrations on puzzles: plans by search, with a share of random actions."""

from __future__ import annotations

import random
from collections.abc import Coroutine, Iterator, Mapping
from typing import Any, cast

from verl_mas.config.schema import WorkflowSpec
from verl_mas.errors import ConfigError
from verl_mas.puzzles.base import Puzzle
from verl_mas.puzzles.boards import board
from verl_mas.puzzles.game import COMPACT, Attempt, Play
from verl_mas.puzzles.scoring import score_actions
from verl_mas.splits import TRAIN
from verl_mas.warmup.demonstrations import Lesson
from verl_mas.workflow.base import find, resolve

# Turns shown on one board. Noise spreads them over states that a perfect player never sees.
_TURNS = 10
# Far from the seeds that reinforcement learning trains on.
_FIRST_SEED = 10_000_000


def tiny_workflow(name: str, args: Mapping[str, Any]) -> Play:
    """The workflow with prompts for a tiny model."""
    kind = find(name)
    if not issubclass(kind, Play):
        raise ConfigError(f"workflow {name}", rule="demonstrations are for puzzles", fix="planner_executor")
    workflow = resolve(WorkflowSpec(name, args={"text": COMPACT, **args}))
    workflow.check()
    return cast(Play, workflow)


def noisy_plan(puzzle: Puzzle, length: int, noise: float, rng: random.Random) -> list[str]:
    """Up to `length` actions along a shortest way, each replaced by any legal one with probability `noise`."""
    ahead = puzzle.copy()
    plan: list[str] = []
    while len(plan) < length and not ahead.solved:
        best, legal = ahead.best_actions(), list(ahead.legal_actions())
        plan.append(rng.choice(legal if not best or rng.random() < noise else best))
        ahead.step(plan[-1])
    return plan


def lessons(workflow: Play, name: str, size: Mapping[str, Any], *, noise: float, seed: int = 0) -> Iterator[Lesson]:
    """Endless: every act of the workflow on board after board, with the workflow's own prompts."""
    rng = random.Random(seed)
    number = _FIRST_SEED * (seed + 1)
    while True:
        puzzle = board(name, number, TRAIN, size)
        number += 1
        for _ in range(_TURNS):
            if puzzle.solved or puzzle.distance() is None:
                break
            shown, puzzle = _turn(workflow, puzzle, noise, rng)
            yield from shown


def _turn(workflow: Play, puzzle: Puzzle, noise: float, rng: random.Random) -> tuple[list[Lesson], Puzzle]:
    """The workflow's turn, with an expert in place of every agent."""
    shown: list[Lesson] = []

    async def choose(agent: str, state: Puzzle, prompt: str) -> Attempt:
        plan = noisy_plan(state, workflow.moves, noise, rng)
        shown.append(Lesson(agent, prompt, workflow.codec(state).render(plan)))
        return Attempt(plan, score_actions(state, plan, limit=workflow.moves))

    return shown, _result(workflow.turn(puzzle, choose))


def _result(turn: Coroutine[Any, Any, Puzzle]) -> Puzzle:
    """An expert keeps nobody waiting: no event loop is needed, which would take longer than the turn."""
    try:
        turn.send(None)
    except StopIteration as done:
        return done.value
    raise RuntimeError("a turn waited for something other than its experts")
