"""Demonstrations on puzzles: shortest plans, with a share of random actions."""

from __future__ import annotations

import random
from collections.abc import Coroutine, Iterator, Mapping
from typing import cast

from verl_mas.config.schema import WorkflowSpec
from verl_mas.errors import ConfigError
from verl_mas.gym.puzzles.base import Puzzle
from verl_mas.gym.puzzles.boards import Size, board
from verl_mas.gym.puzzles.game import COMPACT, Attempt, Play
from verl_mas.gym.puzzles.scoring import score_actions
from verl_mas.gym.warmup.demonstrations import Lesson
from verl_mas.util.splits import TRAIN
from verl_mas.workflow.base import find, resolve

# Turns on one board. Noise leads to states that a perfect player never reaches.
_TURNS = 10
# Disjoint from the seeds that reinforcement learning trains on.
_FIRST_SEED = 10_000_000


def tiny_workflow(name: str, args: Mapping[str, object]) -> Play:
    """The workflow with prompts for a tiny model."""
    kind = find(name)
    if not issubclass(kind, Play):
        raise ConfigError(
            f"workflow {name}", rule="demonstrations are for workflows that play puzzles", fix="use planner_executor"
        )
    workflow = resolve(WorkflowSpec(name, args={"text": COMPACT, **args}))
    workflow.check()
    return cast(Play, workflow)


def noisy_plan(puzzle: Puzzle, length: int, noise: float, rng: random.Random) -> list[str]:
    """Up to `length` actions of a shortest plan, each replaced by a random legal one with probability `noise`."""
    ahead = puzzle.certain()
    plan: list[str] = []
    while len(plan) < length and not ahead.solved:
        best, legal = ahead.best_actions(), list(ahead.legal_actions())
        plan.append(rng.choice(legal if not best or rng.random() < noise else best))
        ahead.step(plan[-1])
    return plan


def lessons(workflow: Play, name: str, size: Size, *, noise: float, seed: int = 0) -> Iterator[Lesson]:
    """Endless: the acts of the workflow on one board after another, with the workflow's own prompts."""
    rng = random.Random(seed)
    number = _FIRST_SEED * (seed + 1)
    while True:
        puzzle = board(name, number, TRAIN, size)
        number += 1
        for _ in range(_TURNS):
            if puzzle.solved or puzzle.distance() is None:
                break
            acts, puzzle = _turn(workflow, puzzle, noise, rng)
            yield from acts


def _turn(workflow: Play, puzzle: Puzzle, noise: float, rng: random.Random) -> tuple[list[Lesson], Puzzle]:
    """The acts of one turn, in which an expert plays every agent, and the puzzle after it."""
    acts: list[Lesson] = []

    async def choose(agent: str, state: Puzzle, prompt: str) -> Attempt:
        plan = noisy_plan(state, workflow.moves, noise, rng)
        acts.append(Lesson(agent, prompt, workflow.codec(state).render(plan)))
        return Attempt(plan, score_actions(state, plan, limit=workflow.moves))

    return acts, _result(workflow.turn(puzzle, choose))


def _result(turn: Coroutine[object, None, Puzzle]) -> Puzzle:
    """Runs the coroutine without an event loop, which would take longer than the turn. Experts never wait."""
    try:
        turn.send(None)
    except StopIteration as done:
        puzzle: Puzzle = done.value
        return puzzle
    raise RuntimeError("a turn awaited something other than `choose`")
