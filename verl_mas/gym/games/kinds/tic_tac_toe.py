"""Tic-tac-toe from the empty board or after up to two moves: perfect information, and a draw with perfect play."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import permutations

from verl_mas.gym.games.game import Game, Player, register_game

MARKS = "XO"
FREE = "-"
CELLS = "123456789"
LINES = [(0, 1, 2), (3, 4, 5), (6, 7, 8), (0, 3, 6), (1, 4, 7), (2, 5, 8), (0, 4, 8), (2, 4, 6)]
OPENING = 2  # moves of the longest opening


@register_game("tic_tac_toe")
@dataclass(frozen=True)
class TicTacToe(Game):
    board: str = FREE * 9

    name = "tic_tac_toe"
    rules = (
        "Tic-tac-toe: X and O take turns to mark a free cell of a board of three by three cells. Three marks in a row, "
        "a column or a diagonal win; a full board without them is a draw."
    )

    @classmethod
    @functools.cache
    def starts(cls) -> Sequence[str]:
        return [" ".join(moves) for count in range(OPENING + 1) for moves in permutations(CELLS, count)]

    @classmethod
    def start(cls, name: str) -> TicTacToe:
        state = cls()
        for move in name.split():
            state = state.after(move)
        return state

    @property
    def player(self) -> Player:
        return 0 if self.board.count(FREE) % 2 else 1

    def actions(self) -> Sequence[str]:
        if self._winner():
            return ()
        return [cell for cell, mark in zip(CELLS, self.board, strict=True) if mark == FREE]

    def after(self, action: str) -> TicTacToe:
        cell = CELLS.index(action)
        return TicTacToe(self.board[:cell] + MARKS[self.player] + self.board[cell + 1 :])

    def result(self) -> float:
        return {MARKS[0]: 1.0, MARKS[1]: -1.0}.get(self._winner(), 0.0)

    def view(self) -> str:
        cells = [cell if mark == FREE else mark for cell, mark in zip(CELLS, self.board, strict=True)]
        rows = "\n".join(" ".join(cells[row : row + 3]) for row in (0, 3, 6))
        return f"You are {MARKS[self.player]}. The board, where a free cell has its number:\n{rows}"

    def compact(self) -> str:
        """From the player's side, so that both players' states look alike."""
        own = MARKS[self.player]
        return " ".join(FREE if mark == FREE else "m" if mark == own else "y" for mark in self.board)

    def optimal(self) -> Mapping[str, float]:
        sign = 1 if self.player == 0 else -1
        values = {action: sign * _value(self.after(action)) for action in self.actions()}
        best = [action for action, value in values.items() if value == max(values.values())]
        return {action: 1 / len(best) for action in best}

    def _winner(self) -> str:
        board = self.board
        return next((board[a] for a, b, c in LINES if board[a] != FREE and board[a] == board[b] == board[c]), "")


@functools.cache
def _value(state: TicTacToe) -> float:
    """What player 0 wins if both play perfectly."""
    values = [_value(state.after(action)) for action in state.actions()]
    if not values:
        return state.result()
    return max(values) if state.player == 0 else min(values)
