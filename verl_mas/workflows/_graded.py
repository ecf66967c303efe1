"""Base classes of teams whose answers a grader scores during the session, and functions that group equal answers."""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, Protocol, TypeVar

from verl_mas.environment.grading.forms import FORMS, AnswerForm, form_of_verl
from verl_mas.environment.grading.grader import Grader, Truth, grader
from verl_mas.errors import InvalidInput
from verl_mas.workflow import Codec, Malformed, Message, Reply, Task, Workflow, with_instruction
from verl_mas.workflow.base import REGISTERED

# The value of `score` if there is no grader. Then verl's reward function scores the answer after the session.
VERL = "verl"
SCORE = "mas.workflow.args.score"


@dataclass(frozen=True)
class Graded:
    """A reply with its answer (None if it is unreadable) and its grade (None if it could not be checked)."""

    reply: Reply
    answer: str | None
    grade: float | None

    @property
    def value(self) -> float:
        return self.grade or 0.0


@dataclass(frozen=True)
class GradedTask:
    """A task, the form of its answer in a reply, and its grader. Without a grader, verl scores the answer."""

    task: Task
    form: Codec[str]
    grader: Grader | None
    truth: Truth

    def prompt(self, instruction: str) -> list[Message]:
        """Add the instruction and the form of the answer to the task's messages."""
        return with_instruction(self.task.messages, f"{instruction} {self.form.prompt()}")

    def read(self, reply: Reply) -> Graded:
        """Read the answer in a reply, without grading it."""
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
    compares the answer with the ground truth."""

    form: AnswerForm | None = None
    r"""Form of the answer in a reply: box, `\boxed{7}`; hashes, `#### 7`; tag, `<answer>7</answer>`. null: the
    form that verl's scorer of the data source reads. With a grader or without a data source, null means box."""

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
        """Make the graded task. Raises an error if the grader cannot read the ground truth."""
        grader = self.optional_grader()
        truth = grader.read(task.ground_truth) if grader else None
        return GradedTask(task, self.answer_form(task.data_source), grader, truth)


class WithGrader(WithVerlOrGrader):
    score: str = "math"
    """The grader of answers."""

    def optional_grader(self) -> Grader:
        """Return the grader. `verl` is refused, because it is not a grader."""
        return grader(self.score, SCORE)

    grader = optional_grader


class Candidate(Protocol):
    @property
    def answer(self) -> str | None:
        """The answer; None if it is unreadable."""


C = TypeVar("C", bound=Candidate)


async def by_answer(candidates: Sequence[C], equal: Callable[[str, str], Awaitable[bool]]) -> list[list[C]]:
    """Group candidates with equal answers, in the order in which the answers first occur. Candidates without an answer
    are skipped."""
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
    """Group replies with equal answers. Two answers are equal if the grader gives full marks to one answer when the
    other answer is the ground truth."""

    async def equal(answer: str, other: str) -> bool:
        if answer == other:
            return True
        try:
            truth = grader.read(answer)
        except InvalidInput:
            # A model's answer may lack the form of a ground truth. Then only an identical answer is equal to it.
            return False
        return await grader(truth, other) == 1

    return await by_answer(replies, equal)


async def most_frequent(grader: Grader, replies: Sequence[Graded]) -> list[Graded]:
    """Return the replies with the most frequent answer. In a tie, return the replies whose answer occurs first. The
    list is empty if no reply has an answer."""
    return max(await same_answers(grader, replies), key=len, default=[])
