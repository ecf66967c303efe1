"""The tasks of the evidence, and their arms and runs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import chain

from benchmarks.evidence.arms import Arm, Piece, by_seeds
from benchmarks.evidence.tasks import (
    folded,
    guide_driver,
    lookup,
    peers,
    plan_path,
    recursion,
    secret_words,
    self_play,
    slippery,
    split_clues,
    sums,
    unequal_roles,
    worlds,
)
from benchmarks.evidence.tasks.base import Task

_TASKS = (
    secret_words.TASK,
    unequal_roles.TASK,
    split_clues.TASK,
    split_clues.UNEVEN_TASK,
    guide_driver.TASK,
    slippery.TASK,
    lookup.TASK,
    folded.TASK,
    recursion.TASK,
    plan_path.TASK,
    sums.TASK,
    self_play.TASK,
    peers.TASK,
    worlds.TASK,
)
TASKS: Mapping[str, Task] = {task.name: task for task in _TASKS}
ARMS: Mapping[str, Arm] = {arm.name: arm for task in TASKS.values() for arm in task.arms}


def pieces() -> list[Piece]:
    """Return all pieces. Within a task, the most important piece comes first."""
    found = (by_seeds(*group.arms) for task in TASKS.values() for group in task.groups)
    return list(dict.fromkeys(chain.from_iterable(found)))


def named(names: Sequence[str]) -> Iterator[Arm]:
    """Yield the arms of the named tasks and groups, and the named arms."""
    groups = {group.name: group.arms for task in TASKS.values() for group in task.groups}
    known = {**{name: (arm,) for name, arm in ARMS.items()}, **groups, **{n: t.arms for n, t in TASKS.items()}}
    for name in names:
        if name not in known:
            raise SystemExit(f"{name} is no task, group or arm; known are {', '.join(known)}")
        yield from known[name]


def needs(piece: Piece) -> list[Piece]:
    """Return the training runs whose weights an evaluation uses. A training run needs none."""
    played = getattr(piece.arm, "roles", {}).values()
    return list(dict.fromkeys(Piece(ARMS[one.arm], piece.partner(one)) for one in played))
