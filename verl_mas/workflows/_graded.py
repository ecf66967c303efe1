"""The base of teams whose answers a grader scores during the session."""

from __future__ import annotations

from verl_mas.grading.grader import Grader, grader
from verl_mas.workflow import Workflow


class WithGrader(Workflow):
    score: str = "math"
    """The grader of answers."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.grader()

    def check(self) -> None:
        self.grader().check()

    def grader(self) -> Grader:
        return grader(self.score, "mas.workflow.args.score")
