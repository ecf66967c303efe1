"""The interface of every world: who acts now, what each player sees, what an action leads to, what each has earned."""

from __future__ import annotations

import inspect
import random
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, TypeAlias, TypeVar, cast

from verl_mas.errors import ConfigError
from verl_mas.registry import Registry
from verl_mas.user_code import USER_MODULE, load_module
from verl_mas.workflow.client import Message

# A text, or the parts of a message, such as images.
Content: TypeAlias = str | Sequence[Message]
# Who plays without an LLM, where the world knows how.
Script: TypeAlias = Literal["random", "optimal"]


@dataclass(frozen=True)
class Setup:
    """Which world of a hub, and how an episode of it starts."""

    name: str
    seed: int = 0
    options: Mapping[str, object] = field(default_factory=dict)  # of the hub
    compact: bool = False  # observations in a few words of one token each, for tiny models


@dataclass(frozen=True)
class Observation:
    """Observation of a player that has to act."""

    content: Content
    legal: Sequence[str] | None = None  # None: any text is an action
    news: Content | None = None  # what a conversation adds to what the player saw before; None: `content`
    form: str | None = None  # how an action is written; None: the workflow's own words


@dataclass(frozen=True)
class View:
    """State of an episode as seen from outside."""

    observations: Mapping[str, Observation]  # of the players that act now, together if several do; {}: it is over
    rewards: Mapping[str, float]  # what each player has earned since the start
    illegal: Mapping[str, int] = field(default_factory=dict)  # actions that the world refused, by player
    info: Mapping[str, object] = field(default_factory=dict)  # for the metrics, at the end; also `acc`, `draw`, `loss`
    board: str = ""  # for transcripts; empty: nothing to show


class World(ABC):
    """One episode.

    Every method may block: it runs in a thread or in a process, and never at once with another one of its session.
    Exceptions are faults of the session.
    """

    @classmethod
    @abstractmethod
    def players(cls, setup: Setup) -> Sequence[str]:
        """Everybody who may act in an episode; the agents of a team have these names."""

    @classmethod
    def fixed(cls, setup: Setup) -> str | None:
        """Why an episode cannot be copied; None if it can."""
        return "its world does not write `copy`" if cls.copy is World.copy else None

    @classmethod
    def starts(cls, setup: Setup) -> int | None:
        """How many seeds begin different episodes: 0 to one less than that. None: any seed does."""
        return None

    @classmethod  # noqa: B027  (most worlds need nothing outside of their process)
    def check(cls, setup: Setup) -> None:
        """Raise, before a run starts, if every episode would fail: a package is missing, a name is unknown, a server is
        down."""

    def __init__(self, setup: Setup):
        self.setup = setup

    @abstractmethod
    def start(self) -> View:
        """Begin the episode of the seed."""

    @abstractmethod
    def step(self, actions: Mapping[str, str | None]) -> View:
        """The action of every player that `observations` names. It may be illegal, and None could not be read: what
        either costs is the world's own rule, and is counted in `illegal`."""

    def copy(self) -> World:
        """An independent copy of this state."""
        raise NotImplementedError

    def reseed(self, seed: int) -> None:  # noqa: B027  (most worlds have no chance)
        """Sample later random events again, so that a continued copy does not leak the future."""

    def scripted(self, script: Script, player: str, rng: random.Random) -> str:
        """The action of a player without an LLM."""
        if script == "random" and (legal := self.observed(player).legal):
            return rng.choice(list(legal))
        rule = "a world knows such a player if it lists its legal actions, or has a strategy of its own"
        raise ConfigError(f"{self.setup.name} with a player {script!r}", rule=rule, fix="set opponent=self or past")

    def observed(self, player: str) -> Observation:
        """The current observation of a player, for `scripted`."""
        raise NotImplementedError

    def close(self) -> None:  # noqa: B027  (most worlds hold nothing)
        """Give back what the episode holds: connections, files, processes."""


# Keys in the extra_info of a dataset row; all but the seed may be missing.
SEED, NAME, OPTIONS = "world_seed", "world", "world_options"
SETTING = "mas.workflow.args.world"
WORLDS: Registry[type[World]] = Registry("world", package="verl_mas.worlds.hubs", group="verl_mas.worlds")
W = TypeVar("W", bound=type[World])


def register_world(hub: str) -> Callable[[W], W]:
    """Register a class of worlds under the name of its hub: `mas.workflow.args.world` is `<hub>/<name>`."""
    return cast("Callable[[W], W]", WORLDS.register(hub))


def find(world: str) -> tuple[str, type[World], str]:
    """Find a class of worlds. Returns an address that finds it in every process, the class, and the name that the class
    knows.

    `world` is `<hub>/<name>`, or `my_world.py:MyWorld`, optionally followed by `/<name>`.
    """
    hub, _, name = world.partition("/")
    file, in_file, rest = world.partition(".py:")
    if in_file and hub not in WORLDS:
        name, _, variant = rest.partition("/")
        kind = getattr(load_module(f"{file}.py", SETTING), name, None)
        if not (inspect.isclass(kind) and issubclass(kind, World)):
            fix = f"name a class of {file}.py that is a World"
            raise ConfigError(f"{SETTING}={world}", rule="it is <file>.py:<class>, or <hub>/<name>", fix=fix)
        return world, kind, variant
    kind = WORLDS.find(hub, f"the hub of {SETTING}")
    if kind.__module__.startswith(USER_MODULE):  # registered by mas.plugins, which other processes have not loaded
        return f"{inspect.getfile(kind)}:{kind.__name__}/{name}", kind, name
    return world, kind, name
