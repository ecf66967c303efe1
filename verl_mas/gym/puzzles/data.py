"""The data set `puzzle`, and demonstrations on puzzles: shortest plans, with a share of random actions."""

import argparse
import random
from collections.abc import Coroutine, Iterator, Mapping
from dataclasses import dataclass

from verl_mas.cli._arguments import add_settings, values, whole
from verl_mas.config.user_code import load_module
from verl_mas.data.dataset import DATA_SETS, Loader, Prepared
from verl_mas.data.items import Item
from verl_mas.errors import ConfigError
from verl_mas.gym.puzzles.game import Play, PuzzleAttempt, score_actions
from verl_mas.gym.puzzles.puzzle import Puzzle, Size, board, row
from verl_mas.gym.warmup import Generated, Lesson, WarmUp, tiny
from verl_mas.util.splits import TEST, TRAIN
from verl_mas.workflow.base import find

# Turns on one board. Because of the noise, the later turns start from states that a perfect player never reaches.
_TURNS = 10
FIRST_SEED = 10_000_000  # disjoint from the seeds that reinforcement learning trains on


def tiny_workflow(name: str, args: Mapping[str, object]) -> Play:
    """Make the workflow, with prompts for a tiny model."""
    kind = find(name)
    if not issubclass(kind, Play):
        rule = "demonstrations are for workflows that play puzzles"
        raise ConfigError(f"workflow {name}", rule=rule, fix="use planner_executor")
    workflow = tiny(kind, **args)
    workflow.check()
    return workflow


def noisy_plan(puzzle: Puzzle, length: int, noise: float, rng: random.Random) -> list[str]:
    """Return up to `length` actions of a shortest plan, each replaced by a random legal action with probability
    `noise`."""
    ahead = puzzle.certain()
    plan: list[str] = []
    while len(plan) < length and not ahead.solved:
        best, legal = ahead.best_actions(), list(ahead.legal_actions())
        plan.append(rng.choice(legal if not best or rng.random() < noise else best))
        ahead.step(plan[-1])
    return plan


def lessons(workflow: Play, name: str, size: Size, *, noise: float, seed: int = 0) -> Iterator[Lesson]:
    """Yield demonstrations endlessly: acts of the workflow, with its own prompts, on one board after another."""
    rng = random.Random(seed)
    number = FIRST_SEED * (seed + 1)
    while True:
        puzzle = board(name, number, TRAIN, size)
        number += 1
        for _ in range(_TURNS):
            if puzzle.solved or puzzle.distance() is None:
                break
            acts, puzzle = _turn(workflow, puzzle, noise, rng)
            yield from acts


def _turn(workflow: Play, puzzle: Puzzle, noise: float, rng: random.Random) -> tuple[list[Lesson], Puzzle]:
    """Play one turn, with an expert as every agent; return its acts and the puzzle after it."""
    acts: list[Lesson] = []

    async def choose(agent: str, state: Puzzle, prompt: str) -> PuzzleAttempt:
        plan = noisy_plan(state, workflow.moves, noise, rng)
        acts.append(Lesson(agent, prompt, workflow.codec(state).render(plan)))
        return score_actions(state, plan, limit=workflow.moves)

    return acts, _result(workflow.turn(puzzle, choose))


def _result(turn: Coroutine[object, None, Puzzle]) -> Puzzle:
    """Run a coroutine without an event loop, because a loop would take longer than the turn. Experts never wait."""
    try:
        turn.send(None)
    except StopIteration as done:
        puzzle: Puzzle = done.value
        return puzzle
    raise RuntimeError("a turn awaited something other than `choose`")


@dataclass(frozen=True)
class BoardItem(Item):
    """A board, which is generated from its seed."""

    seed: int
    split: str
    size: Size

    def row(self, index: int, split: str) -> dict[str, object]:
        return row(self.source, self.seed, self.split, self.size)


def items(puzzle: str, count: int, split: str, first: int, size: Size) -> list[BoardItem]:
    """Return `count` boards of a split; their seeds count up from `first`."""
    seeds = range(first, first + count)
    return [BoardItem(f"{puzzle} {split} {seed}", "", puzzle, seed, split, size) for seed in seeds]


@DATA_SETS.register("puzzle")
class PuzzleData(Generated):
    """Boards of a puzzle, for a team that plays on them: Plan-Path, Sokoban, Sudoku, or a puzzle of your own."""

    warm_up = WarmUp()
    rows = (4096, 200)
    of_demonstrations = ("workflow", "args")

    def options(self, parser: argparse.ArgumentParser) -> None:
        plugins = "a Python file or module that registers a puzzle or a workflow; may be given several times"
        puzzle = "one that `verl-mas list puzzles` lists, or one of --plugins"
        parser.add_argument("puzzle", metavar="PUZZLE", help=puzzle)
        parser.add_argument("--plugins", action="append", default=[], metavar="FILE", help=plugins)
        add_settings(parser, "--size", "settings of the boards: the arguments of the puzzle's `generate`")
        add_settings(parser, "--practice", "settings of the training boards, where they differ")
        first_test = "number of the first held-out board"
        parser.add_argument("--first-test", type=whole(0), default=0, metavar="N", help=first_test)
        workflow = "the workflow with whose prompts the model is warmed up"
        parser.add_argument("--workflow", default="planner_executor", help=workflow)
        add_settings(parser, "--args", "arguments of that workflow")

    def prepare(self, options: argparse.Namespace, load: Loader) -> Prepared:
        for where in options.plugins:
            load_module(where, "--plugins")
        return super().prepare(options, load)

    def generate(self, options: argparse.Namespace) -> Prepared:
        size, practice = _sizes(options)
        # Fail before anything is written if one of the boards cannot be made.
        board(options.puzzle, 0, TRAIN, practice)
        board(options.puzzle, 0, TEST, size)
        train = items(options.puzzle, options.train_rows, TRAIN, options.seed * options.train_rows, practice)
        # The test rows are the same for every seed.
        test = items(options.puzzle, options.test_rows, TEST, options.first_test, size)
        kind = {"seed": options.seed, "size": size, "practice": practice, "first_test": options.first_test}
        return Prepared(train, test, test, {options.puzzle: kind})

    def lessons(self, options: argparse.Namespace) -> Iterator[Lesson]:
        workflow = tiny_workflow(options.workflow, values(options.args, "--args NAME=VALUE"))
        return lessons(workflow, options.puzzle, _sizes(options)[1], noise=options.noise, seed=options.seed)


def _sizes(options: argparse.Namespace) -> tuple[Size, Size]:
    """Return the sizes of the held-out boards and of the training boards."""
    size = values(options.size, "--size NAME=VALUE")
    return size, size | values(options.practice, "--practice NAME=VALUE")
