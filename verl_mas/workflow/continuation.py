"""Candidates that are played on to the end, each from its own copy of the state: to score them, or to train on all."""

from __future__ import annotations

import copy
import random
from collections import deque
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from numbers import Real
from statistics import fmean
from typing import TypeAlias, TypeVar

from verl_mas.errors import WorkflowError
from verl_mas.workflow.line import Line
from verl_mas.workflow.outcome import Outcome
from verl_mas.workflow.reply import Reply
from verl_mas.workflow.session import Session
from verl_mas.workflow.tasks import together

State = TypeVar("State")
# (line, candidate, state) -> how the session ends when it continues with the candidate; a number is its reward.
PlayOnLine: TypeAlias = Callable[[Line, Reply, State], Awaitable[Outcome | float]]

CONTAINERS = (list, dict, set, bytearray, deque)
# Their copies may be the same object.
CONSTANTS = (str, bytes, int, float, complex, tuple, frozenset, type(None))


async def continued(
    session: Session, line: Line, candidate: Reply, play: PlayOnLine[State], state: State, n: int
) -> float | None:
    """`Team.continue_from`."""
    if n < 1:
        raise WorkflowError(f"continue_from with n={n}", rule="a candidate is played on 1 or more times", fix="use n=1")
    if candidate.among == 1:
        return None

    async def once(number: int) -> float:
        probe = line.probing(f"{_place(candidate)}/{candidate.branch}/{number}")
        with _untouched(state):
            outcome = await _outcome(play, probe, candidate, restored(state, probe.random("state")))
        return (await session.score_of(outcome)).reward

    candidate.team_reward = fmean(await together([partial(once, number) for number in range(n)]))
    return candidate.team_reward


async def forked(
    session: Session, line: Line, candidates: Sequence[Reply], play: PlayOnLine[State], state: State
) -> list[Outcome]:
    """`Team.fork`."""
    if len(candidates) == 1:
        return [await _outcome(play, line, candidates[0], state)]
    before = [reply for reply in line.replies if reply not in candidates]
    line.over = True

    async def played(candidate: Reply) -> tuple[Line, Outcome, float]:
        fork = line.forked(candidate.branch, _place(candidate))
        with _untouched(state):
            outcome = await _outcome(play, fork, candidate, restored(state, fork.random("state")))
        score = await session.score_of(outcome)
        _reward([candidate, *fork.replies], score.reward)
        return fork, replace(outcome, reward=score.reward, info={**score.info, **outcome.info}), score.reward

    ended = await together([partial(played, candidate) for candidate in candidates])
    # All forks share these acts.
    _reward(before, fmean(reward for _, _, reward in ended))
    session.commit(candidates)
    for candidate, (fork, _, _) in zip(candidates, ended, strict=True):
        for reply in fork.replies:
            reply.committed = candidate.committed
    return [outcome for _, outcome, _ in ended]


def _reward(replies: Sequence[Reply], reward: float) -> None:
    for reply in replies:
        if reply.team_reward is None:
            reply.team_reward = reward


def _place(reply: Reply) -> str:
    return f"{reply.agent}/{reply.instance}/{reply.turn}"


async def _outcome(play: PlayOnLine[State], line: Line, candidate: Reply, state: State) -> Outcome:
    outcome = await play(line, candidate, state)
    if isinstance(outcome, Outcome):
        return outcome
    if isinstance(outcome, Real):
        return Outcome(reward=float(outcome))
    raise WorkflowError(
        f"a candidate of {candidate.agent} was played on, and the result is {outcome!r:.200}",
        rule="`play(team, candidate, state)` returns an Outcome, or its reward as a number",
        fix="return Outcome(reward=...)",
    )


def restored(state: State, rng: random.Random | None = None) -> State:
    """An independent copy of `state`, by its `copy()` if it has one. What chance decides from here on is drawn from
    `rng` where the state has a `reseed(rng)`: a copy with the chance of the original would know the future."""
    copied = _copied(state)
    if (copied is state or copied is None) and not isinstance(state, CONSTANTS):
        raise WorkflowError(
            f"the copy of a state of type {type(state).__name__} is {'the same object' if copied is state else copied}",
            rule="a candidate is played on from its own copy of the state, and the session from the original",
            fix=f"give {type(state).__name__} a copy() that returns an independent copy, or none, for copy.deepcopy",
        )
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
        raise WorkflowError(
            f"a state of type {kind} cannot be copied: {error}",
            rule="a candidate is played on from its own copy of the state",
            fix=f"keep what cannot be copied out of the {kind}, or pass an object with a copy() of its own"
            if isinstance(state, CONTAINERS)
            else f"give {kind} a copy() that returns an independent copy",
        ) from error


@contextmanager
def _untouched(state: object) -> Iterator[None]:
    """Refuses a `copy()` that shares what the copy then changes."""
    before = _contents(state)
    yield
    for name, content in _contents(state).items():
        if content != before.get(name):
            kind = type(state).__name__
            raise WorkflowError(
                f"{kind}.{name} changed while a copy of its {kind} was played on",
                rule="the copy of a state shares nothing with it that changes",
                fix=f"copy {name} in {kind}.copy(), with what is inside it",
            )


def _contents(state: object) -> dict[str, str]:
    """The containers among the attributes, written out."""
    slots = [name for kind in type(state).__mro__ for name in getattr(kind, "__slots__", ())]
    names = [*getattr(state, "__dict__", {}), *slots]
    values = {name: getattr(state, name, None) for name in names}
    return {name: repr(value) for name, value in values.items() if isinstance(value, CONTAINERS)}
