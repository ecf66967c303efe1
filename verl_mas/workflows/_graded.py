"""Teams whose answers a grader scores during the session, and the grades of boxed answers."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar

from verl_mas.errors import InvalidInput
from verl_mas.grading.forms import FORMS, AnswerForm, form_of_verl
from verl_mas.grading.grader import Grader, Truth, grader
from verl_mas.workflow import Codec, Malformed, Reply, Workflow

# Not a grader: verl's reward function scores the answer after the session.
VERL = "verl"
SCORE = "mas.workflow.args.score"


class WithVerlOrGrader(Workflow):
    score: str = VERL

    form: AnswerForm | None = None
    r"""How an answer stands in a reply: box, `\boxed{7}`; hashes, `#### 7`; tag, `<answer>7</answer>`. null: as verl's
    own scorer of the task's data source reads it; a box for a grader, and for a question without a data source."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.optional_grader()

    def answer_form(self, data_source: str | None) -> Codec[str]:
        return FORMS[self.form or (form_of_verl(data_source or "") if self.score == VERL else "box")]

    def check(self) -> None:
        if grader := self.optional_grader():
            grader.check()

    def optional_grader(self) -> Grader | None:
        return None if self.score == VERL else grader(self.score, SCORE)


class WithGrader(WithVerlOrGrader):
    score: str = "math"
    """The grader of answers."""

    def optional_grader(self) -> Grader:
        """Also of `verl`, which is not a grader and therefore refused."""
        return grader(self.score, SCORE)

    grader = optional_grader


@dataclass(frozen=True)
class Graded:
    """A reply, its answer (None: it has none that can be read), and its grade (None: it could not be checked)."""

    reply: Reply
    answer: str | None
    grade: float | None

    @property
    def value(self) -> float:
        return self.grade or 0.0


async def graded(grader: Grader, truth: Truth, form: Codec[str], reply: Reply) -> Graded:
    answer = reply.parse(form)
    if isinstance(answer, Malformed):
        return Graded(reply, None, 0.0)
    return Graded(reply, answer, await grader(truth, answer))


class Candidate(Protocol):
    @property
    def answer(self) -> str | None:
        """None: it has none that can be read."""


C = TypeVar("C", bound=Candidate)


async def by_answer(candidates: Sequence[C], equal: Callable[[str, str], Awaitable[bool]]) -> list[list[C]]:
    """Those with an answer, grouped by it, in the order in which the answers come first."""
    groups: list[list[C]] = []
    for candidate in candidates:
        if candidate.answer is None:
            continue
        for group in groups:
            if await equal(str(group[0].answer), candidate.answer):
                group.append(candidate)
                break
        else:
            groups.append([candidate])
    return groups


async def most_frequent(grader: Grader, replies: Sequence[Graded]) -> list[Graded]:
    """Those with the most frequent answer; of equally frequent ones the answer that comes first. Empty if none has an
    answer. Two answers are equal if one has full marks where the other is the truth."""

    async def equal(answer: str, other: str) -> bool:
        if answer == other:
            return True
        try:
            truth = grader.read(answer)
        except InvalidInput:
            # What a model wrote need not be a ground truth.
            return False
        return await grader(truth, other) == 1

    return max(await by_answer(replies, equal), key=len, default=[])
