"""Ray clusters for the runs: a new cluster per run, or kept clusters in which runs follow each other.

Kept clusters save time, because a run of a tiny model needs as long to start Python and Ray as to train.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from queue import SimpleQueue
from typing import Protocol

SUPPORT = Path(__file__).parents[2] / "tests" / "support"


class Place(Protocol):
    @property
    def python(self) -> str: ...

    def joined(self, environment: Mapping[str, str]) -> tuple[dict[str, str], list[str]]:
        """Return the environment and the further overrides of a run in this cluster."""
        ...


class Alone:
    """A place without a kept cluster, so that the run starts and ends its own."""

    python = sys.executable

    def joined(self, environment: Mapping[str, str]) -> tuple[dict[str, str], list[str]]:
        return dict(environment), []


class Places:
    """The places for runs. If `count` is 0, every run starts its own cluster. Otherwise `count` clusters are kept, and
    each of them has one run at a time."""

    def __init__(self, count: int = 0):
        self._count, self._stack = count, ExitStack()
        self._free: SimpleQueue[Place] = SimpleQueue()

    def __enter__(self) -> Places:
        if self._count:
            sys.path.insert(0, str(SUPPORT))
            from ray_cluster import RayCluster
            from warm_python import WarmPython

            warm = self._stack.enter_context(WarmPython())
            for _ in range(self._count):
                cluster = self._stack.enter_context(RayCluster(str(warm.executable)))
                self._free.put(_Kept(str(warm.executable), cluster))
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    @contextmanager
    def one(self) -> Iterator[Place]:
        if not self._count:
            yield Alone()
            return
        place = self._free.get()
        try:
            yield place
        finally:
            place.cluster.wait_until_empty()  # type: ignore[attr-defined]
            self._free.put(place)


class _Kept:
    def __init__(self, python: str, cluster: Place):
        self.python, self.cluster = python, cluster

    def joined(self, environment: Mapping[str, str]) -> tuple[dict[str, str], list[str]]:
        return self.cluster.joined(environment)
