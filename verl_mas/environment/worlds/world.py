"""The interface of worlds: who acts now, what each player sees, the result of an action, and the rewards so far."""

from __future__ import annotations

import inspect
import random
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, TypeAlias, TypeVar, cast

from verl_mas.config.registry import Registry
from verl_mas.config.user_code import USER_MODULE, load_module
from verl_mas.errors import ConfigError
from verl_mas.workflow.client import Message

# A text, or the parts of a message, such as images.
Content: TypeAlias = str | Sequence[Message]
# Players without an LLM, which some worlds provide.
Script: TypeAlias = Literal["random", "optimal"]


@dataclass(frozen=True)
class Setup:
    """A world of a hub, and how its episode starts."""

    name: str
    seed: int = 0
    options: Mapping[str, object] = field(default_factory=dict)  # options of the hub
    compact: bool = False  # observations in a few words of one token each, for tiny models


@dataclass(frozen=True)
class Observation:
    """The observation of a player that has to act."""

    content: Content
    legal: Sequence[str] | None = None  # None: any text is an action
    news: Content | None = None  # replaces `content` after the first act of a conversation, if it is not None
    form: str | None = None  # how to write an action; None: the workflow's own instruction


@dataclass(frozen=True)
class View:
    """The state of an episode as seen from outside."""

    observations: Mapping[str, Observation]  # by player, for the players that act now; {}: the episode is over
    rewards: Mapping[str, float]  # the sum of each player's rewards since the start
    illegal: Mapping[str, int] = field(default_factory=dict)  # number of refused actions, by player
    info: Mapping[str, object] = field(default_factory=dict)  # metrics at the end, such as `acc`, `draw`, `loss`
    board: str = ""  # drawing of the state for transcripts; empty: no drawing


class World(ABC):
    """One episode.

    A method may block, because it runs in a thread or process of its own; a session calls one method at a time. An
    exception becomes a fault of the session.
    """

    @classmethod
    @abstractmethod
    def players(cls, setup: Setup) -> Sequence[str]:
        """Return all players that may act in an episode; the agents of the team have these names."""

    @classmethod
    def fixed(cls, setup: Setup) -> str | None:
        """Return the reason why an episode cannot be copied; None if it can."""
        return "its world does not write `copy`" if cls.copy is World.copy else None

    @classmethod
    def starts(cls, setup: Setup) -> int | None:
        """Return the number of different starts: the seeds from 0 to one less than this number. None if every seed has
        its own start."""
        return None

    @classmethod  # noqa: B027  (most worlds need nothing outside their process)
    def check(cls, setup: Setup) -> None:
        """Raise an error before the run starts if every episode would fail, such as for a missing package, an unknown
        name or a server that is down."""

    def __init__(self, setup: Setup):
        self.setup = setup

    @abstractmethod
    def start(self) -> View:
        """Start the episode of the seed."""

    @abstractmethod
    def step(self, actions: Mapping[str, str | None]) -> View:
        """Apply one action for each player in `observations`. None stands for an unreadable action. The world decides
        the cost of an illegal or unreadable action, and counts it in `illegal`."""

    def copy(self) -> World:
        """Return an independent copy of this state."""
        raise NotImplementedError

    def reseed(self, seed: int) -> None:  # noqa: B027  (most worlds have no chance)
        """Reseed later random events, so that a continued copy does not reveal the later events of the original."""

    def scripted(self, script: Script, player: str, rng: random.Random) -> str:
        """Choose the action of a player without an LLM."""
        if script == "random" and (legal := self.observed(player).legal):
            return rng.choice(list(legal))
        rule = "a world knows such a player if it lists its legal actions, or has a strategy of its own"
        raise ConfigError(f"{self.setup.name} with a player {script!r}", rule=rule, fix="set opponent=self or past")

    def observed(self, player: str) -> Observation:
        """Return the current observation of a player, for `scripted`."""
        raise NotImplementedError

    def close(self) -> None:  # noqa: B027  (most worlds hold nothing)
        """Release the connections, files and processes of the episode."""


# Keys in the extra_info of a dataset row; only the seed is required.
SEED, NAME, OPTIONS = "world_seed", "world", "world_options"
SETTING = "mas.workflow.args.world"
WORLDS: Registry[type[World]] = Registry("world", package="verl_mas.environment.worlds.hubs", group="verl_mas.worlds")
W = TypeVar("W", bound=type[World])


def register_world(hub: str) -> Callable[[W], W]:
    """Register a class of worlds under the name of its hub: `mas.workflow.args.world` is `<hub>/<name>`."""
    return cast("Callable[[W], W]", WORLDS.register(hub))


def find(world: str) -> tuple[str, type[World], str]:
    """Find a class of worlds. Returns three values: an address of the class that is valid in every process, the class,
    and the name of the world within the class.

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
