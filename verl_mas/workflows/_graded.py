"""Teams whose answers a grader scores during the session, and the grades of boxed answers."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, Protocol, TypeVar

from verl_mas.errors import InvalidInput
from verl_mas.grading.forms import FORMS, AnswerForm, form_of_verl
from verl_mas.grading.grader import Grader, Truth, grader
from verl_mas.workflow import Codec, Malformed, Message, Reply, Task, Workflow, with_instruction
from verl_mas.workflow.base import REGISTERED

# Not a grader: verl's reward function scores the answer after the session.
VERL = "verl"
SCORE = "mas.workflow.args.score"


@dataclass(frozen=True)
class Graded:
    """A reply, its answer (None: it has none that can be read), and its grade (None: it could not be checked)."""

    reply: Reply
    answer: str | None
    grade: float | None

    @property
    def value(self) -> float:
        return self.grade or 0.0


@dataclass(frozen=True)
class GradedTask:
    """A task, how its answer stands in a reply, and what grades it. No grader: verl's reward function does."""

    task: Task
    form: Codec[str]
    grader: Grader | None
    truth: Truth

    def prompt(self, instruction: str) -> list[Message]:
        """The messages of the task, the instruction, and how to write the answer."""
        return with_instruction(self.task.messages, f"{instruction} {self.form.prompt()}")

    def read(self, reply: Reply) -> Graded:
        """The reply and its answer, without a grade."""
        answer = reply.parse(self.form)
        return Graded(reply, None if isinstance(answer, Malformed) else answer, None)

    async def grade(self, reply: Reply) -> Graded:
        assert self.grader is not None
        read = self.read(reply)
        return replace(read, grade=0.0 if read.answer is None else await self.grader(self.truth, read.answer))


class WithVerlOrGrader(Workflow):
    safe_arguments: ClassVar = {"score": REGISTERED}
    needs_labels: ClassVar[bool] = True  # Whether rows to train on need a ground truth

    score: str = VERL
    """verl: verl's reward function scores the team's answer. Any other value names a grader, such as math or em, which
    compares it with the ground truth."""

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

    def graded(self, task: Task) -> GradedTask:
        """The task, whose ground truth the grader can read."""
        grader = self.optional_grader()
        truth = grader.read(task.ground_truth) if grader else None
        return GradedTask(task, self.answer_form(task.data_source), grader, truth)


class WithGrader(WithVerlOrGrader):
    score: str = "math"
    """The grader of answers."""

    def optional_grader(self) -> Grader:
        """Also of `verl`, which is not a grader and therefore refused."""
        return grader(self.score, SCORE)

    grader = optional_grader


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


async def same_answers(grader: Grader, replies: Sequence[Graded]) -> list[list[Graded]]:
    """Those with an answer, grouped by it. Two answers are equal if one has full marks where the other is the truth."""

    async def equal(answer: str, other: str) -> bool:
        if answer == other:
            return True
        try:
            truth = grader.read(answer)
        except InvalidInput:
            # What a model wrote need not be a ground truth.
            return False
        return await grader(truth, other) == 1

    return await by_answer(replies, equal)


async def most_frequent(grader: Grader, replies: Sequence[Graded]) -> list[Graded]:
    """Those with the most frequent answer; of equally frequent ones the answer that comes first. Empty if none has an
    answer."""
    return max(await same_answers(grader, replies), key=len, default=[])
