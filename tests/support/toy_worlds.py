"""A world for tests: `world=TOY + "/turns"`."""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import os
import random
import time
from collections.abc import Mapping, Sequence

from verl_mas.environment.worlds import Observation, Setup, View, World

TOY = f"{__file__}:Count"
PLAYERS = ("left", "right")
DIGITS, LETTERS = ({action: number for number, action in enumerate(names)} for names in ("012345", "abcdef"))


def write_to_the_worker(message: bytes) -> None:
    """Write into the socket through which the process of a world answers."""
    for descriptor in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):
            if os.readlink(f"/proc/self/fd/{descriptor}").startswith("socket"):
                os.write(int(descriptor), message)


class Code:
    """An object whose pickle runs code where it is read."""

    def __reduce__(self) -> tuple[object, ...]:
        return os.system, ("exit 3",)


class Count(World):
    """Players add digits in turn (in the world `both` at once), until `steps` steps are played. Each player earns its
    digits. In the world `chance`, each step also adds a random digit to the reward of `left`. A digit above 5 is
    illegal and costs 1. Tiny models have letters for digits. The world `free` lists no legal actions."""

    @classmethod
    def players(cls, setup: Setup) -> Sequence[str]:
        return PLAYERS

    @classmethod
    def fixed(cls, setup: Setup) -> str | None:
        return "once has no copies" if setup.name == "once" else super().fixed(setup)

    def start(self) -> View:
        self.legal = LETTERS if self.setup.compact else DIGITS
        self.rng = random.Random(self.setup.seed)
        self.steps, self.turn = int(str(self.setup.options.get("steps", 4))), 0
        self.rewards = dict.fromkeys(PLAYERS, 0.0)
        self.refused = dict.fromkeys(PLAYERS, 0)
        self.events: list[str] = []
        return self.view()

    def step(self, actions: Mapping[str, str | None]) -> View:
        name = self.setup.name
        if name == "hangs":
            time.sleep(60)
        if name == "dies":
            os._exit(3)
        if name == "exits":
            raise SystemExit(3)
        if name == "half":
            write_to_the_worker(b"\0\0\1\0half an answer")
            time.sleep(60)
        if name == "long":
            write_to_the_worker(b"\x7f\xff\xff\xff")
            time.sleep(60)
        if name == "raises":
            raise KeyError("no such room")
        for player, action in actions.items():
            if action is not None and action in self.legal:
                self.rewards[player] += self.legal[action]
            else:
                self.rewards[player] -= 1
                self.refused[player] += 1
            self.events.append(f"{player} {action}")
        if name == "chance":
            self.rewards["left"] += self.rng.randrange(10)
        if name == "nonsense":
            self.rewards["left"] = float("nan")
        self.turn += 1
        if name == "code":
            return dataclasses.replace(self.view(), info={"turns": Code()})
        return self.view()

    def view(self) -> View:
        acting = PLAYERS if self.setup.name == "both" else (PLAYERS[self.turn % 2],)
        over = self.turn == self.steps
        seen = {} if over else {player: self.observed(player) for player in acting}
        return View(seen, dict(self.rewards), dict(self.refused), {"turns": self.turn}, board=str(self.turn))

    def observed(self, player: str) -> Observation:
        text = f"turn {self.turn} of {player}"
        legal = None if self.setup.name == "free" else list(self.legal)
        return Observation(text, legal, news=self.events[-1] if self.events else None)

    def copy(self) -> Count:
        return copy.deepcopy(self)

    def reseed(self, seed: int) -> None:
        self.rng = random.Random(seed)
