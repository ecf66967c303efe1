"""Copies of an environment's state: candidates are played on to the end, each from its own."""

from __future__ import annotations

import copy
import random
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TypeVar

from verl_mas.errors import WorkflowError

State = TypeVar("State")
CONTAINERS = (list, dict, set, bytearray, deque)
CONSTANTS = (str, bytes, int, float, complex, tuple, frozenset, type(None))  # their copies may be the same object


def restored(state: State, rng: random.Random | None = None) -> State:
    """An independent copy of `state`, by its `copy()` if it has one. What chance decides from here on is drawn from
    `rng` where the state has a `reseed(rng)`: a copy with the chance of the original would know the future."""
    copied = _copied(state)
    if (copied is state or copied is None) and not isinstance(state, CONSTANTS):
        kind = type(state).__name__
        value = f"the copy of a state of type {kind} is {'the same object' if copied is state else copied}"
        rule = "a candidate is played on from its own copy of the state, and the session from the original"
        fix = f"give {kind} a copy() that returns an independent copy, or none, for copy.deepcopy"
        raise WorkflowError(value, rule=rule, fix=fix)
    if rng is not None and (reseed := getattr(copied, "reseed", None)) is not None:
        reseed(rng)
    return copied


def _copied(state: State) -> State:
    # The copy() of containers copies the outermost level alone.
    own = None if isinstance(state, CONTAINERS) else getattr(state, "copy", None)
    if callable(own):
        copied: State = own()
        return copied
    try:
        return copy.deepcopy(state)
    except (TypeError, copy.Error, NotImplementedError, RecursionError) as error:
        kind = type(state).__name__
        fix = f"give {kind} a copy() that returns an independent copy"
        if isinstance(state, CONTAINERS):
            fix = f"keep what cannot be copied out of the {kind}, or pass an object with a copy() of its own"
        rule = "a candidate is played on from its own copy of the state"
        raise WorkflowError(f"a state of type {kind} cannot be copied: {error}", rule=rule, fix=fix) from error


@contextmanager
def untouched(state: object) -> Iterator[None]:
    """Refuses a `copy()` that shares what the copy then changes."""
    before = _contents(state)
    yield
    for name, content in _contents(state).items():
        if content != before.get(name):
            kind = type(state).__name__
            value = f"{kind}.{name} changed while a copy of its {kind} was played on"
            rule = "the copy of a state shares nothing with it that changes"
            raise WorkflowError(value, rule=rule, fix=f"copy {name} in {kind}.copy(), with what is inside it")


def _contents(state: object) -> dict[str, str]:
    """The containers among the attributes, written out."""
    slots = [name for kind in type(state).__mro__ for name in getattr(kind, "__slots__", ())]
    names = [*getattr(state, "__dict__", {}), *slots]
    values = {name: getattr(state, name, None) for name in names}
    return {name: repr(value) for name, value in values.items() if isinstance(value, CONTAINERS)}
