"""Sokoban: push every box onto a target. Distances are exact, so every deadlock is detected."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass

from verl_mas.config.values import Count
from verl_mas.errors import ConfigError
from verl_mas.gym.puzzles.grid import FREE, MOVES, WALL, Walls, neighbours, offset, place, steps_from
from verl_mas.gym.puzzles.puzzle import Puzzle, register_puzzle, stream
from verl_mas.util.splits import TRAIN, split_of

PLAYER, PLAYER_ON_TARGET, BOX, BOX_ON_TARGET, TARGET = "A", "a", "B", "b", "T"
_OPPOSITE = {"U": "D", "D": "U", "L": "R", "R": "L"}
_ATTEMPTS = 1000
_MOST_STATES = 200_000  # states of the largest distance table, which takes about a second and 100 MB

State = tuple[int, tuple[int, ...]]


@dataclass(frozen=True, slots=True)
class Level:
    """The constant part of a puzzle: walls, targets, and the distance of every solvable state."""

    size: int
    targets: frozenset[int]
    moves: tuple[dict[str, int], ...]
    distances: dict[State, int]
    layout: str


def solve_backwards(targets: frozenset[int], moves: tuple[dict[str, int], ...]) -> dict[State, int]:
    """Compute the distance of every solvable state by a backward search from all solved states."""
    home = tuple(sorted(targets))
    solved = [(cell, home) for cell, legal in enumerate(moves) if legal and cell not in targets]

    def one_move_before(state: State) -> Iterator[State]:
        player, boxes = state
        for back, came_from in moves[player].items():
            if came_from in boxes:
                continue
            yield came_from, boxes
            in_front = moves[player].get(_OPPOSITE[back])
            if in_front in boxes:  # the move may have pushed this box
                yield came_from, tuple(sorted(player if box == in_front else box for box in boxes))

    return steps_from(solved, one_move_before)


@register_puzzle("sokoban")
class Sokoban(Puzzle):
    __slots__ = ("boxes", "initial_distance", "level", "player")

    name = "sokoban"
    rules = (
        f"The room shows walls ({WALL}), floor ({FREE}), targets ({TARGET}), boxes ({BOX}, on a target "
        f"{BOX_ON_TARGET}) and you ({PLAYER}, on a target {PLAYER_ON_TARGET}). Push every box onto a target by "
        "walking into it; a box cannot be pulled, and not pushed into a wall or another box."
    )
    action_help = "U, D, L, R: one cell up, down, left, right"
    action_pattern = re.compile("[UDLR]")

    def __init__(self, level: Level, player: int, boxes: tuple[int, ...], initial_distance: int):
        self.level, self.player, self.boxes, self.initial_distance = level, player, boxes, initial_distance

    @classmethod
    def generate(
        cls,
        seed: int,
        split: str = TRAIN,
        *,
        size: int = 6,
        boxes: int = 1,
        walls: Walls = 0.15,
        min_distance: Count = 3,
    ) -> Sokoban:
        """Generate a level of size x size cells with a wall around it; `walls` is the share of wall cells inside."""
        inside = [row * size + column for row in range(1, size - 1) for column in range(1, size - 1)]
        _check_states(size, boxes, len(inside) - round(walls * len(inside)))
        rng = stream(cls.name, seed, split)
        around = frozenset(range(size * size)) - set(inside)
        for _ in range(_ATTEMPTS):
            blocked = around | set(rng.sample(inside, round(walls * len(inside))))
            targets = frozenset(rng.sample([cell for cell in inside if cell not in blocked], boxes))
            signs = (WALL if cell in blocked else TARGET if cell in targets else FREE for cell in range(size * size))
            layout = "".join(signs)
            if split_of(layout) != split:
                continue
            moves = neighbours(size, frozenset(blocked))
            distances = solve_backwards(targets, moves)
            starts = [state for state, length in distances.items() if length >= min_distance]
            if starts:
                player, at = rng.choice(starts)
                return cls(Level(size, targets, moves, distances, layout), player, at, distances[player, at])
        value = f"sokoban size={size} boxes={boxes} walls={walls} min_distance={min_distance}"
        rule = f"one of {_ATTEMPTS} random levels must be a {split} level of this kind"
        raise ConfigError(value, rule=rule, fix="use fewer walls, a larger size or a smaller min_distance")

    def copy(self) -> Sokoban:
        return Sokoban(self.level, self.player, self.boxes, self.initial_distance)

    def legal_actions(self) -> list[str]:
        return [action for action in MOVES if self._after(action) is not None]

    def _after(self, action: str) -> State | None:
        to = self.level.moves[self.player].get(action)
        if to is None:
            return None
        if to not in self.boxes:
            return to, self.boxes
        behind = self.level.moves[to].get(action)
        if behind is None or behind in self.boxes:
            return None
        return to, tuple(sorted(behind if box == to else box for box in self.boxes))

    def step(self, action: str) -> bool:
        after = self._after(action)
        if after is None:
            return False
        self.player, self.boxes = after
        return True

    def distance(self) -> int | None:
        return self.level.distances.get((self.player, self.boxes))

    def value(self) -> float:
        """Return the share of boxes on targets."""
        return sum(box in self.level.targets for box in self.boxes) / len(self.boxes)

    def _cells(self) -> list[str]:
        cells = list(self.level.layout)
        for box in self.boxes:
            cells[box] = BOX_ON_TARGET if cells[box] == TARGET else BOX
        cells[self.player] = PLAYER_ON_TARGET if cells[self.player] == TARGET else PLAYER
        return cells

    def render(self) -> str:
        text, size = "".join(self._cells()), self.level.size
        return "\n".join(text[start : start + size] for start in range(0, len(text), size))

    def compact(self) -> str:
        """Format the state as words: the rows inside the outer walls; the positions of player, boxes and targets; for
        each box its offset from the player and its offset to the nearest target; the cells up, down, left and right of
        the player."""
        cells, size, at = self._cells(), self.level.size, self.player
        walls = self.level.layout.replace(TARGET, FREE)
        words = (walls[row * size + 1 : (row + 1) * size - 1] for row in range(1, size - 1))
        boxes, targets = ((BOX, box) for box in self.boxes), ((TARGET, to) for to in sorted(self.level.targets))
        places = (sign + place(cell, size) for sign, cell in ((PLAYER, at), *boxes, *targets))
        offsets = (offset(at, box, size) + " " + offset(box, self._nearest(box), size) for box in self.boxes)
        near = cells[at - size] + cells[at + size] + cells[at - 1] + cells[at + 1]
        return " ".join([*words, *places, *offsets, near])

    def _nearest(self, box: int) -> int:
        size = self.level.size
        return min(self.level.targets, key=lambda to: (abs(box // size - to // size) + abs(box % size - to % size), to))


def _check_states(size: int, boxes: int, free: int) -> None:
    if size < 4 or boxes < 1 or free < boxes + 2:
        value = f"sokoban size={size} boxes={boxes}"
        rule = "a level has space for its boxes, the player and a free cell"
        raise ConfigError(value, rule=rule, fix="use a larger size, fewer boxes or fewer walls")
    states = free * math.comb(free - 1, boxes)
    if states > _MOST_STATES:
        value = f"sokoban size={size} boxes={boxes} has {states} states"
        rule = f"distances are exact, from a table of at most {_MOST_STATES} states"
        raise ConfigError(value, rule=rule, fix="use a smaller size or fewer boxes")
