"""Keeps the episodes of a session on a stage. A stage runs in a host, which is a thread or a process of its own, so
that a world cannot block the event loop of a worker. A session takes a host from a pool and returns it. A host that
hangs or dies is not used again."""

from __future__ import annotations

import asyncio
import io
import os
import pickle
import queue
import random
import socket
import subprocess
import sys
import threading
import time
import traceback
from collections import OrderedDict, defaultdict, deque
from collections.abc import AsyncIterator, Callable, Collection, Mapping, Sequence
from concurrent.futures import Future
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from typing import Literal, TypeAlias, cast

from verl_mas.environment.worlds.world import Observation, Script, Setup, View, World, find
from verl_mas.errors import FaultKind, ForeignError, MasError, SessionFault, foreign
from verl_mas.util.threads import settle

Kind: TypeAlias = Literal["thread", "process"]
MOST_BYTES = 64 << 20  # limit of an answer from a process
WAIT_S = 5.0  # timeout for the exit status of a process that has closed its connection
# Classes that an answer may contain in pickle format, since they hold only data.
DATA = {
    *(f"{kind.__module__}.{kind.__name__}" for kind in (View, Observation, bytearray, complex, OrderedDict, deque)),
    *(f"datetime.{name}" for name in ("date", "datetime", "time", "timedelta", "timezone")),
    *(f"numpy.{core}.multiarray.{name}" for core in ("core", "_core") for name in ("_reconstruct", "scalar")),
    *("decimal.Decimal", "numpy.dtype", "numpy.ndarray", "PIL.Image.Image"),
}
WATCH_S = 1.0  # seconds between two checks in a world's process that its parent is alive
MOST_REHEARSED = 1000


@dataclass(frozen=True)
class Draw:
    """The action of a player without an LLM: a script, and the seed with which the stage samples the action."""

    script: Script
    seed: str

    def at(self, step: int) -> Draw:
        return replace(self, seed=f"{self.seed} {step}")


class Stage:
    """The episodes of one session by index: the original episode, and the copies in which candidates are continued."""

    def __init__(self) -> None:
        self._episodes: list[World] = []

    def open(self, address: str, setup: Setup) -> tuple[int, View]:
        _, kind, _ = find(address)
        world = kind(setup)
        number = self._add(world)
        return number, checked(world.start(), world, setup)

    def step(
        self, number: int, actions: Mapping[str, str | Draw | None], copy_seed: int | None = None
    ) -> tuple[int, View]:
        """Take a step of an episode. With `copy_seed`, the step is taken in a new copy, which is reseeded first."""
        world = self._episodes[number]
        if copy_seed is not None:
            world = world.copy()
            world.reseed(copy_seed)
            number = self._add(world)
        taken = {
            player: world.scripted(action.script, player, random.Random(action.seed))
            if isinstance(action, Draw)
            else action
            for player, action in actions.items()
        }
        return number, checked(world.step(taken), world, world.setup)

    def close(self) -> None:
        episodes, self._episodes = self._episodes, []
        for world in episodes:
            world.close()

    def _add(self, world: World) -> int:
        self._episodes.append(world)
        return len(self._episodes) - 1


def rehearse(address: str, setup: Setup, scripts: Collection[Script]) -> None:
    """Play an episode with random actions, if the world lists legal actions, and an episode with each script. Errors
    of the world are raised."""
    chance, stage = random.Random(0), Stage()
    for script in (None, *scripts):
        number, view = stage.open(address, setup)
        for step in range(MOST_REHEARSED):
            seen = view.observations
            if not seen or (script is None and not all(one.legal for one in seen.values())):
                break
            actions = {
                player: Draw(script, f"{step} {player}") if script else chance.choice(list(one.legal or ()))
                for player, one in seen.items()
            }
            number, view = stage.step(number, actions)
    stage.close()


def checked(view: View, world: World, setup: Setup) -> View:
    """Check that a view names players of the world, and that its rewards are finite numbers."""
    players, name = set(world.players(setup)), setup.name or type(world).__name__
    if strange := {*view.observations, *view.rewards} - players:
        raise ValueError(f"{name} names the players {sorted(strange)}; it has {sorted(players)}")
    if missing := players - set(view.rewards):
        raise ValueError(f"{name} has no rewards of the players {sorted(missing)}")
    rewards = {player: float(reward) for player, reward in view.rewards.items()}
    if wrong := {player: reward for player, reward in rewards.items() if not abs(reward) < float("inf")}:
        raise ValueError(f"{name} gives rewards that are not finite numbers: {wrong}")
    return replace(view, rewards=rewards)


class Died(Exception):
    """The process of a world ended."""


class Late(Exception):
    """A world did not answer in time."""


class Failed(Exception):
    """A world raised an exception in its process. The message has the traceback."""


class InThread:
    """Runs methods of a stage in a thread, one after the other.

    A thread cannot be killed, so a thread in which a world hangs is abandoned.
    """

    usable = True

    def __init__(self) -> None:
        self._calls: queue.SimpleQueue[tuple[Future[object], str, Sequence[object]] | None] = queue.SimpleQueue()
        # The thread is a daemon, so that a world that hangs does not keep the worker alive.
        threading.Thread(target=self._run, name="world", daemon=True).start()

    async def call(self, method: str, arguments: Sequence[object], limit_s: float) -> object:
        result: Future[object] = Future()
        self._calls.put((result, method, arguments))
        answer = asyncio.wrap_future(result)
        try:
            # Do not use `wait_for`, which in Python 3.11 loses a cancellation that arrives together with the answer.
            await asyncio.wait({answer}, timeout=limit_s)
            if not answer.done():
                raise Late
            return answer.result()
        except (Late, asyncio.CancelledError, Died):
            answer.cancel()
            if self.usable:  # the world is still in this call, or its process has ended
                self.usable = False
                self.end()
            raise

    def end(self) -> None:
        """End the host, even during a call."""
        self._calls.put(None)

    def _run(self) -> None:
        stage = Stage()
        self._answer(lambda method, arguments: getattr(stage, method)(*arguments))
        with suppress(Exception):  # the session has left; its world may hold connections
            stage.close()

    def _answer(self, made: Callable[[str, Sequence[object]], object]) -> None:
        while (call := self._calls.get()) is not None:
            result, method, arguments = call
            if not result.set_running_or_notify_cancel():
                continue
            settle(result, partial(made, method, arguments))


class InProcess(InThread):
    """Runs a stage in a process, which is killed if a world hangs, and which does not hold the interpreter lock of the
    worker. A thread waits for its answers, so that an incomplete or long message does not block the event loop."""

    def __init__(self) -> None:
        self._connection, other = Pipe()
        # `python -c` has an empty path for the folder of the start; a world may leave this folder.
        paths = "sys.path[:] = [path or os.getcwd() for path in sys.path]"
        command = [sys.executable, "-c", f"import os, sys; {paths}; from {__name__} import main; main()"]
        self._process = subprocess.Popen(command, stdin=other.fileno())
        other.close()
        super().__init__()

    def end(self) -> None:
        super().end()
        self._process.kill()
        self._process.wait()
        # Shut down this end of the connection, because a child of the process may keep the other end open. The thread
        # would then wait forever.
        with suppress(OSError), socket.socket(fileno=os.dup(self._connection.fileno())) as end:
            end.shutdown(socket.SHUT_RDWR)

    def _run(self) -> None:
        self._answer(self._made)
        self._connection.close()

    def _made(self, method: str, arguments: Sequence[object]) -> object:
        try:
            self._connection.send((method, arguments))
            answer = self._connection.recv_bytes(MOST_BYTES)
        except (EOFError, OSError) as error:
            if "bad message length" in str(error):
                raise Died(f"its process wrote an answer above {MOST_BYTES:,} bytes") from error
            raise Died(f"its process ended with {self._process.wait(WAIT_S)}") from error
        result, failure = Data(io.BytesIO(answer)).load()
        if failure is not None:
            raise Failed(failure)
        return result


def main() -> None:
    """Run a stage in the process that `InProcess` starts. Standard input is a socket. The process receives calls of the
    stage's methods on this socket and sends their results back, until the other end is closed."""
    threading.Thread(target=_end_with, args=(os.getppid(),), daemon=True).start()
    connection, stage = Connection(os.dup(0)), Stage()
    # Worlds must not read from the socket, and must not write to the standard output of the run.
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    sys.stdout = sys.stderr
    while True:
        try:
            method, arguments = connection.recv()
        except EOFError:
            return
        result, failure = None, None
        try:
            result = getattr(stage, method)(*arguments)
        except BaseException as error:  # noqa: BLE001  (the boundary: worlds of others may raise anything)
            failure = f"{type(error).__name__}: {error}\n{traceback.format_exc()}"
        connection.send((result, failure))


def _end_with(parent: int) -> None:
    """End this process when its parent is gone. While a world hangs, the main thread does not notice that the other end
    of the socket was closed."""
    while os.getppid() == parent:
        time.sleep(WATCH_S)
    os._exit(1)


class Data(pickle.Unpickler):
    """Unpickles the answer of a process of a world. It allows only data and images, so that no code runs in this
    process."""

    def find_class(self, module: str, name: str) -> object:
        if f"{module}.{name}" in DATA:
            return super().find_class(module, name)
        raise Failed(f"its answer has a {module}.{name}, which is not data: return numbers, strings, lists and images")


@dataclass(frozen=True)
class Place:
    """The session's reference to a state of an episode. A continuation of a candidate gets a `copy` of the reference,
    with a seed. The first step of the continuation copies the episode, and reseeds the random numbers of that copy."""

    episode: int
    view: View
    seed: int | None = None

    def copy(self) -> Place:
        return replace(self, seed=0)

    def reseed(self, rng: random.Random) -> None:
        object.__setattr__(self, "seed", rng.getrandbits(32))


class Stages:
    """Opens, steps and closes the episode of a session in a host. Failures become faults of the session that name the
    world."""

    def __init__(self, host: InThread, world: str, limit_s: float):
        self._host, self._world, self._limit_s = host, world, limit_s

    async def open(self, setup: Setup) -> Place:
        return await self._place("open", self._world, setup)

    async def step(self, place: Place, actions: Mapping[str, str | Draw | None]) -> Place:
        return await self._place("step", place.episode, actions, place.seed)

    async def close(self) -> None:
        if self._host.usable:
            await self._call("close")

    async def _place(self, method: str, *arguments: object) -> Place:
        """Call a method that returns the index of an episode and its view."""
        return Place(*cast("tuple[int, View]", await self._call(method, *arguments)))

    async def _call(self, method: str, *arguments: object) -> object:
        name, limit = self._world, self._limit_s
        try:
            with foreign(Late, MasError, exits=True):
                return await self._host.call(method, arguments, limit)
        except Late as error:
            cause = f"world {name}: {method} took more than {limit:g} s; rule: mas.workflow.args.step_timeout_s; "
            cause += "fix: raise it, or set mas.workflow.args.runs_in=process, where a world that hangs is ended"
            raise SessionFault(FaultKind.WORLD, cause) from error
        except ForeignError as failed:
            cause = str(failed.error if isinstance(failed.error, Died | Failed) else failed)
            raise SessionFault(FaultKind.WORLD, f"world {name}: {method}: {cause}") from failed.error


class Pool:
    """The free hosts by kind. Hosts are reused, because a new process takes seconds to import the hub of its world."""

    def __init__(self) -> None:
        self._free: dict[Kind, list[InThread]] = defaultdict(list)

    @asynccontextmanager
    async def stage(self, world: str, kind: Kind, limit_s: float) -> AsyncIterator[Stages]:
        """Take a host of a kind for an episode of a world. `limit_s` is the time limit of a call."""
        free = self._free[kind]
        host = free.pop() if free else (InThread() if kind == "thread" else InProcess())
        stages = Stages(host, world, limit_s)
        try:
            yield stages
        finally:
            await stages.close()
            if host.usable:
                free.append(host)


POOL = Pool()
