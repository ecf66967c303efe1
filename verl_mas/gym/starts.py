"""The starts of a game as questions."""

from __future__ import annotations

from verl_mas.data.items import Item
from verl_mas.gym.games.base import GAMES, task_of
from verl_mas.util.splits import split_of


def starts(name: str, split: str) -> list[Item]:
    """Of a board game every start of the split; of a card game every deal."""
    kind = GAMES[name]
    questions = [task_of(name, start) for start in kind.starts()]
    return [Item(question, "", name) for question in questions if kind.dealt or split_of(question) == split]
