"""Graders decide whether an answer is right. A workflow's `score` names a grader."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, TypeAlias

from verl_mas.config.registry import Registry

# Whether the session answers a question of a user, without a ground truth. Such a session runs as in training, but its
# grades mean nothing, so its outcome excludes them. In training and evaluation, a missing ground truth is an error.
ASKED: ContextVar[bool] = ContextVar("asked", default=False)
UNKNOWN = "(unknown)"


def unknown(ground_truth: object) -> bool:
    return ground_truth is None and ASKED.get()


# The result of a grader's `read`.
Truth: TypeAlias = Any
# (truth, answer) -> a grade from 0 (wrong) to 1 (right); None: the answer could not be checked.
GradeFunction: TypeAlias = Callable[[Truth, str], "float | Awaitable[float | None] | None"]


def _unchanged(ground_truth: object) -> Truth:
    return ground_truth


def _nothing() -> None:
    pass


@dataclass(frozen=True)
class Grader:
    """A grader: `await grader(truth, answer)`, with `truth = grader.read(task.ground_truth)`."""

    function: GradeFunction
    read: Callable[[object], Truth] = _unchanged  # refuses a ground truth with which no answer can be graded
    check: Callable[[], None] = _nothing  # called before a run starts; refuses a missing package

    async def __call__(self, truth: Truth, answer: str) -> float | None:
        grade = self.function(truth, answer)
        grade = await grade if inspect.isawaitable(grade) else grade
        return None if grade is None else float(grade)


GRADERS: Registry[Grader] = Registry("grader", package="verl_mas.environment.grading.graders", group="verl_mas.graders")


def grader(name: str, setting: str | None = None) -> Grader:
    """Return the grader of that name: `await grader("em")(truth, answer)`.

    If there is no such grader, the error names `setting`, the setting from which the name was read.
    """
    return GRADERS.find(name, setting)


def register_grader(
    name: str, *, read: Callable[[object], Truth] = _unchanged, check: Callable[[], None] = _nothing
) -> Callable[[GradeFunction], Grader]:
    """Register a grading function of (truth, answer), sync or async.

    The function returns a grade from 0 to 1, or None if the answer could not be checked.
    """
    return lambda function: GRADERS.register(name)(Grader(function, read, check))
