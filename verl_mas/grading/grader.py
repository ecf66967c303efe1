"""Whether an answer is right: the graders that a workflow's `score` names."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, TypeAlias

from verl_mas.registry import Registry

# (truth, answer) -> from 0, wrong, to 1, right; None: the answer could not be checked.
GradeFunction: TypeAlias = Callable[[Any, str], "float | Awaitable[float | None] | None"]


def _as_it_is(ground_truth: Any) -> Any:
    return ground_truth


def _nothing() -> None:
    pass


@dataclass(frozen=True)
class Grader:
    """`await grader(truth, answer)`, where `truth` is what `read` makes of a task's ground truth."""

    function: GradeFunction
    # Refuses a ground truth that no answer can be graded against.
    read: Callable[[Any], Any] = _as_it_is
    # Refuses, before a run starts, a missing package.
    check: Callable[[], None] = _nothing

    async def __call__(self, truth: Any, answer: str) -> float | None:
        grade = self.function(truth, answer)
        grade = await grade if inspect.isawaitable(grade) else grade
        return None if grade is None else float(grade)


GRADERS: Registry[Grader] = Registry("grader", package="verl_mas.grading.graders", group="verl_mas.graders")


def grader(name: str, setting: str | None = None) -> Grader:
    """The grader of that name: `await grader("em")(truth, answer)`. An error names the `setting` that asked for it."""
    return GRADERS.find(name, setting)


def register_grader(
    name: str, *, read: Callable[[Any], Any] = _as_it_is, check: Callable[[], None] = _nothing
) -> Callable[[GradeFunction], Grader]:
    """Register a function of (truth, answer), sync or async, that returns 0 to 1, or None where it cannot say."""

    def decorate(function: GradeFunction) -> Grader:
        return GRADERS.register(name)(Grader(function, read, check))

    return decorate
