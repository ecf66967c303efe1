"""Demonstrations of the rules of a game: random legal moves, with a share of illegal ones."""

from __future__ import annotations

import random
from collections.abc import Iterator

from verl_mas.gym.games.base import GAMES
from verl_mas.gym.warmup.demonstrations import Lesson


def lessons(name: str, *, noise: float, seed: int = 0) -> Iterator[Lesson]:
    """Endless: the moves of random games, as tiny models see them. `noise` is the share of moves that may be illegal.

    A model that knows the rules and no strategy is where self-play starts.
    """
    rng = random.Random(f"lessons {name} {seed}")
    kind = GAMES[name]
    starts = kind.starts()
    words: dict[str, None] = {}
    while True:
        state = kind.start(rng.choice(starts))
        while actions := state.actions():
            words |= dict.fromkeys(actions)
            reply = rng.choice(list(words) if rng.random() < noise else actions)
            yield Lesson("player", state.compact(), reply)
            state = state.after(rng.choice(actions))
