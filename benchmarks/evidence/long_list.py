"""Teams that answer a question about a list of which an agent sees only a window.

In one team an agent may delegate parts of the list to copies of itself; in another, one agent reads all windows.
The question here is the largest letter; in `word_list` it is the colour among words.
"""

from __future__ import annotations

import random
import string
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise
from typing import ClassVar

import torch

from verl_mas.advantage import ESTIMATORS, AdvantageInput, AdvantageOptions, AdvantageOutput
from verl_mas.advantage.estimator import estimator
from verl_mas.advantage.estimators.rao import rao
from verl_mas.advantage.kernel import moments
from verl_mas.config.values import Count, NotNegative
from verl_mas.data.items import Item
from verl_mas.util.loops import together
from verl_mas.workflow import Malformed, Outcome, Task, Team, Workflow, nested
from verl_mas.workflow.codecs import checked
from verl_mas.workflow.team import Prompt
from verl_mas.workflows.leader_workers import Delegation, FinalAnswer, Move
from verl_mas.workflows.recursive import ROLE, Node, Recursive

LETTERS = string.ascii_lowercase + string.ascii_uppercase  # from the smallest letter, a, to the largest, Z
LIST = "list"  # a key of `extra_info`
# The last word of a prompt: the agent may delegate, the agent must answer, or the agent reads window after window.
MAY, MUST, READER = "?", "!", ">"
NOTHING, UNREADABLE, CUT = "-", "#", "~"


@dataclass(frozen=True)
class Question:
    """A question about lists, and the number of entries that an agent sees at once."""

    window: int
    draw: Callable[[int, random.Random], Sequence[str]]
    answer: Callable[[Sequence[str]], str]
    guess: Callable[[Sequence[str], random.Random], str]
    """Draws an answer at random, which is mostly wrong."""
    answers: Sequence[str]
    """All possible answers."""

    @property
    def trained(self) -> Sequence[int]:
        """The lengths to train on: from half a window to four windows."""
        return tuple(int(self.window * share) for share in (0.5, 1, 2, 4))

    def items(self, count: int, lengths: Sequence[int], split: str, seed: int) -> list[Item]:
        rng = random.Random(f"long list {split} {seed}")
        drawn = [self.draw(lengths[number % len(lengths)], rng) for number in range(count)]
        return [ListItem("list", self.answer(one), f"list_{len(one)}", extra={LIST: " ".join(one)}) for one in drawn]


def draw_letters(length: int, rng: random.Random) -> Sequence[str]:
    """Draw a list. Its largest letter has a random position and is any letter but the first few, with equal
    probability."""
    largest = rng.randrange(LARGEST.window, len(LETTERS))
    letters = [LETTERS[largest], *(LETTERS[rng.randrange(largest)] for _ in range(length - 1))]
    return rng.sample(letters, length)


def largest_of(letters: Sequence[str]) -> str:
    return max((letter for letter in letters if letter in LETTERS), key=LETTERS.index, default=LETTERS[-1])


def any_letter(letters: Sequence[str], rng: random.Random) -> str:
    return rng.choice([letter for letter in letters if letter in LETTERS] or LETTERS)


LARGEST = Question(8, draw_letters, largest_of, any_letter, LETTERS)


class ListItem(Item):
    @property
    def key(self) -> str:
        return str(self.extra[LIST])


@dataclass(frozen=True)
class ListMoves:
    """The moves of an agent: ` / 4` delegates its list in 4 equal parts; ` = Z` answers."""

    part: range  # the indices of the node's part in the list
    at_most: int
    answers: Sequence[str]

    def prompt(self) -> str:
        return f"Write / and 1 to {self.at_most}, or = and the answer."

    def render(self, value: Move) -> str:
        text = f" = {value.text}" if isinstance(value, FinalAnswer) else f" / {len(value.subtasks)}"
        return checked(text, value, self.parse(text))

    def parse(self, text: str) -> Move | Malformed:
        match text.split():
            case ["=", answer] if answer in list(self.answers):
                return FinalAnswer(answer)
            case ["/", digit] if digit in [str(parts) for parts in range(1, self.at_most + 1)]:
                return Delegation(tuple(map(_name, parts_of(self.part, int(digit)))))
        return Malformed(f"{text[:20]!r} is neither a delegation nor an answer")


def parts_of(part: range, count: int) -> list[range]:
    places = [len(part) * number // count for number in range(count + 1)]
    return [part[begin:end] for begin, end in pairwise(places)]


def _name(part: range) -> str:
    return f"{part.start} {part.stop}"


def entries(task: Task) -> list[str]:
    return str(task.extra_info[LIST]).split()


class LongList(Recursive):
    """A recursive team. Each copy sees the first entries of its part, up to a window, and the length of a part that is
    longer than the window."""

    max_depth: int = 3
    max_acts: Count = 32
    bonus: NotNegative = 0.0

    score: str = "em"
    question = LARGEST

    def whole(self, task: Task) -> str:
        return f"0 {len(entries(task))}"

    def moves(self, task: Task, node: Node, at_most: int) -> ListMoves:
        return ListMoves(_range(node), min(at_most, len(_range(node))), self.question.answers)

    def opening(self, task: Task, node: Node, at_most: int) -> Prompt:
        part, window = _range(node), self.question.window
        shown = entries(task)[part.start : part.stop][:window]
        cut = [CUT, str(len(part))] if len(part) > window else []
        return " ".join(["", *shown, *cut, MAY if at_most else MUST])

    def following(self, task: Task, node: Node, move: Delegation | Malformed, at_most: int) -> Prompt:
        reports = [] if isinstance(move, Malformed) else [child.answer or UNREADABLE for child in node.rounds[-1]]
        return " ".join(["", *(reports or [UNREADABLE]), MAY if at_most else MUST])

    async def success(self, task: Task, node: Node, root: Node) -> float:
        if node is root:
            return float(node.answer == task.ground_truth)
        part = _range(node)
        return float(node.answer == self.question.answer(entries(task)[part.start : part.stop]))


class FixedList(LongList):
    """A team with a fixed tree. Every copy at a depth below `levels` divides its part in four, whatever it writes; the
    copies below only answer."""

    levels: int = 1

    def moves(self, task: Task, node: Node, at_most: int) -> ListMoves:
        divides = node.depth < self.levels and not node.rounds
        return (Divides if divides else ListMoves)(_range(node), 4 if divides else 0, self.question.answers)

    def opening(self, task: Task, node: Node, at_most: int) -> Prompt:
        return super().opening(task, node, at_most if node.depth < self.levels else 0)

    def following(self, task: Task, node: Node, move: Delegation | Malformed, at_most: int) -> Prompt:
        return super().following(task, node, move, 0)


class Divides(ListMoves):
    """Moves that read any text as a delegation."""

    def parse(self, text: str) -> Move:
        return Delegation(tuple(map(_name, parts_of(self.part, self.at_most))))


class Scrolls(Workflow):
    """One agent that reads window after window, and the whole list twice. Each prompt has its last answer as a note."""

    agents = ("solver_0",)
    question = LARGEST

    async def run(self, task: Task, team: Team) -> Outcome:
        whole, size = entries(task), self.question.window
        windows = [whole[begin : begin + size] for begin in range(0, len(whole), size)] * 2
        note, replies = NOTHING, []
        for window in windows:
            replies.append(await team.solver_0.act(" ".join(["", *window, note, READER])))
            move = replies[-1].parse(ListMoves(range(0), 0, self.question.answers))
            note = move.text if isinstance(move, FinalAnswer) else note
        right = float(note == task.ground_truth)
        for reply in replies:
            reply.team_reward = right
        return Outcome(answer=note, reward=right, info={"acc": right, "critical_path": len(windows)})


class Arms(Workflow):
    """Several teams in one run, which share only the list. `fixed` acts only in validation, with the weights of
    `learnt`; each of the other teams trains a separate policy."""

    teams: ClassVar[Mapping[str, type[Workflow]]] = {"learnt": LongList, "fixed": FixedList, "scrolls": Scrolls}

    @property
    def agents(self) -> Sequence[str]:
        return tuple(name for arm, team in self.teams.items() for name in nested(arm, team()))

    async def run(self, task: Task, team: Team) -> Outcome:
        arms = {arm: kind() for arm, kind in self.teams.items() if task.validate or arm != "fixed"}
        outcomes = await together([partial(one.run, task, team.sub(arm)) for arm, one in arms.items()])
        info: dict[str, float] = {}
        for arm, outcome in zip(arms, outcomes, strict=True):
            written = [reply.generation.sampled for reply in team.replies if reply.agent.startswith(f"{arm}_")]
            info |= {arm: outcome.reward or 0.0, f"{arm}_tokens": sum(written)}
            info |= {f"{arm}_{name}": float(str(value)) for name, value in outcome.info.items() if name != "acc"}
        return Outcome(answer="", reward=info["learnt"], info={"acc": info["learnt"], **info})


def rao_of_each(batch: AdvantageInput, options: AdvantageOptions) -> AdvantageOutput:
    """Apply the estimator `rao` to the rows of each team of `Arms` separately."""
    agents = batch.codes("agent")
    advantages = torch.zeros(len(batch), dtype=torch.float64)
    for arm in Arms.teams:
        own = torch.tensor([str(name).startswith(f"{arm}_") for name in agents.names])[agents.ids]
        rows = own.nonzero().squeeze(1)
        if len(rows):
            found = rao.function(batch.select(rows), replace(options, main=f"{arm}_{ROLE}_0"))
            advantages.index_copy_(0, rows, found.advantages)
    tasks = batch.partition("task")
    return AdvantageOutput(advantages, tasks, moments(batch.scores.double(), tasks, options.deviation)[2])


if "rao_of_each" not in ESTIMATORS:  # this file may be loaded twice: as a plugin and as a module
    estimator(
        compares_sessions=True, one_baseline=True, needs=("instance",), baseline=None, scale=None, weighting=None
    )(rao_of_each)


def _range(node: Node) -> range:
    return range(*map(int, node.part.split()))
