"""The outcome of a session."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from verl_mas.config.registry import KnownNames
from verl_mas.errors import WorkflowError
from verl_mas.verl_.row import VERDICTS
from verl_mas.workflow.reply import Reply, check_reward

# The verdict of an agent on a proposal (True: right, False: wrong, None: unreadable), and whether the proposal is
# really right.
CheckedVerdict = tuple[bool | None, bool]


@dataclass(frozen=True)
class Outcome(KnownNames):
    """How a session ended: the team's `answer`, its `reward`, and `info` for the metrics.

    If `reward` is None, verl's reward function scores `answer`, unless acts have their own rewards. With
    `score_answer`, that function scores the answer even if acts have rewards. `verdicts` maps agents to their verdicts,
    which validation compares with the ground truth.
    """

    answer: Reply | str | None = None
    reward: float | None = None
    score_answer: bool = False
    info: Mapping[str, object] = field(default_factory=dict)
    verdicts: Mapping[str, Sequence[CheckedVerdict]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        answer: object = self.answer
        if inspect.iscoroutine(answer):
            answer.close()
            value = f"the answer is the coroutine {answer.__qualname__}, as `await` is missing before it"
            raise WorkflowError(value, rule="it is a Reply, a text or None", fix="write `await`")
        if not isinstance(answer, Reply | str | None):
            rule, fix = "it is a Reply, a text or None", "return Outcome(answer=reply)"
            raise WorkflowError(f"the answer is {answer!r:.40}", rule=rule, fix=fix)
        check_reward("the reward of an Outcome", self.reward)
        check_reward("acc in the info of an Outcome", self.info.get("acc"))
        if VERDICTS in self.info:
            value = f"Outcome(info={{{VERDICTS!r}: ...}})"
            rule = "info has numbers and texts for the metrics; verdicts have their own field"
            raise WorkflowError(value, rule=rule, fix="return Outcome(verdicts={agent: [(verdict, right), ...]})")

    @property
    def text(self) -> str | None:
        return self.answer.text if isinstance(self.answer, Reply) else self.answer
