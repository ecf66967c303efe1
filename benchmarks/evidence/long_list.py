"""The largest letter of a list that is longer than what an agent sees of it: for an agent that may delegate parts of it
to copies of itself, and for one agent."""

from __future__ import annotations

import argparse
import random
import string
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise

import torch

from verl_mas.advantage import AdvantageInput, AdvantageOptions, AdvantageOutput
from verl_mas.advantage.estimator import estimator
from verl_mas.advantage.estimators.rao import rao
from verl_mas.advantage.kernel import moments
from verl_mas.cli import main
from verl_mas.config.values import Count, NotNegative
from verl_mas.data.dataset import DATA_SETS, Prepared
from verl_mas.data.items import Item, with_next
from verl_mas.gym.warmup import Generated, Lesson, WarmUp, demonstrate
from verl_mas.util.loops import together
from verl_mas.util.splits import TEST, TRAIN
from verl_mas.workflow import Malformed, Outcome, Request, Task, Team, Workflow, nested
from verl_mas.workflow.codecs import checked
from verl_mas.workflow.team import Prompt
from verl_mas.workflows.leader_workers import Delegation, FinalAnswer, Move
from verl_mas.workflows.recursive import ROLE, Node, Recursive

LETTERS = string.ascii_lowercase + string.ascii_uppercase  # in their order: Z is the largest
WINDOW = 8
TRAINED, HELD_OUT = (4, 8, 16, 32), (8, 32, 64)
SHUFFLED = "list_32_shuffled"
LIST = "list"  # a key of `extra_info`
# The last word of a prompt: it may delegate, it must answer, and that of an agent that reads window after window.
MAY, MUST, READER = "?", "!", ">"
NOTHING, UNREADABLE, CUT = "-", "#", "~"


def draw(length: int, rng: random.Random) -> str:
    """A list whose largest letter is equally probably any but the first few, in a random place."""
    largest = rng.randrange(WINDOW, len(LETTERS))
    letters = [LETTERS[largest], *(LETTERS[rng.randrange(largest)] for _ in range(length - 1))]
    return "".join(rng.sample(letters, length))


def largest_of(letters: str) -> str:
    return max(letters, key=LETTERS.index)


class ListItem(Item):
    @property
    def key(self) -> str:
        return str(self.extra[LIST])


def items(count: int, lengths: Sequence[int], split: str, seed: int) -> list[Item]:
    rng = random.Random(f"long list {split} {seed}")
    drawn = [draw(lengths[number % len(lengths)], rng) for number in range(count)]
    return [ListItem("largest", largest_of(one), f"list_{len(one)}", extra={LIST: one}) for one in drawn]


@dataclass(frozen=True)
class ListMoves:
    """` / 4`: delegate the list in 4 equal parts. ` = Z`: the answer."""

    letters: range  # where the node's part is in the list
    at_most: int

    def prompt(self) -> str:
        return f"Write / and 1 to {self.at_most}, or = and the largest letter."

    def render(self, value: Move) -> str:
        text = f" = {value.text}" if isinstance(value, FinalAnswer) else f" / {len(value.subtasks)}"
        return checked(text, value, self.parse(text))

    def parse(self, text: str) -> Move | Malformed:
        match text.split():
            case ["=", letter] if len(letter) == 1 and letter in LETTERS:
                return FinalAnswer(letter)
            case ["/", digit] if digit in [str(parts) for parts in range(1, self.at_most + 1)]:
                return Delegation(tuple(map(_name, parts_of(self.letters, int(digit)))))
        return Malformed(f"{text[:20]!r} is neither a delegation nor an answer")


def parts_of(letters: range, count: int) -> list[range]:
    places = [len(letters) * number // count for number in range(count + 1)]
    return [letters[begin:end] for begin, end in pairwise(places)]


def _name(letters: range) -> str:
    return f"{letters.start} {letters.stop}"


class LongList(Recursive):
    """A copy sees the first letters of its part, as many as fit, and the length of a part that does not fit."""

    max_depth: int = 3
    max_acts: Count = 32
    bonus: NotNegative = 0.0

    score: str = "em"

    def whole(self, task: Task) -> str:
        return f"0 {len(task.extra_info[LIST])}"

    def moves(self, task: Task, node: Node, at_most: int) -> ListMoves:
        return ListMoves(_range(node), min(at_most, len(_range(node))))

    def opening(self, task: Task, node: Node, at_most: int) -> Prompt:
        return seen(task.extra_info[LIST], _range(node), at_most)

    def following(self, task: Task, node: Node, move: Delegation | Malformed, at_most: int) -> Prompt:
        reports = [] if isinstance(move, Malformed) else [child.answer or UNREADABLE for child in node.rounds[-1]]
        return " ".join(["", *(reports or [UNREADABLE]), MAY if at_most else MUST])

    async def success(self, task: Task, node: Node, root: Node) -> float:
        if node is root:
            return float(node.answer == task.ground_truth)
        letters = _range(node)
        return float(node.answer == largest_of(task.extra_info[LIST][letters.start : letters.stop]))


class FixedList(LongList):
    """Every copy at a depth below `levels` divides its part in four, whatever it writes; the others answer."""

    levels: int = 1

    def moves(self, task: Task, node: Node, at_most: int) -> ListMoves:
        divides = node.depth < self.levels and not node.rounds
        return (Divides if divides else ListMoves)(_range(node), 4 if divides else 0)

    def opening(self, task: Task, node: Node, at_most: int) -> Prompt:
        return super().opening(task, node, at_most if node.depth < self.levels else 0)

    def following(self, task: Task, node: Node, move: Delegation | Malformed, at_most: int) -> Prompt:
        return super().following(task, node, move, 0)


class Divides(ListMoves):
    """Whatever is written is a delegation."""

    def parse(self, text: str) -> Move:
        return Delegation(tuple(map(_name, parts_of(self.letters, self.at_most))))


class Scrolls(Workflow):
    """One agent that reads one window after the other, twice each, with its last answer as a note."""

    agents = ("solver_0",)

    async def run(self, task: Task, team: Team) -> Outcome:
        letters = task.extra_info[LIST]
        windows = [letters[begin : begin + WINDOW] for begin in range(0, len(letters), WINDOW)] * 2
        note, replies = NOTHING, []
        for window in windows:
            replies.append(await team.solver_0.act(" ".join(["", *window, note, READER])))
            move = replies[-1].parse(ListMoves(range(0), 0))
            note = move.text if isinstance(move, FinalAnswer) else note
        right = float(note == task.ground_truth)
        for reply in replies:
            reply.team_reward = right
        return Outcome(answer=note, reward=right, info={"acc": right, "critical_path": len(windows)})


class Arms(Workflow):
    """Teams that share the list and nothing else: runs in one. `fixed` acts in validation alone, by the weights of
    `learnt`, and each of the others is trained on a policy of its own."""

    @property
    def agents(self) -> Sequence[str]:
        return tuple(name for arm, team in _arms().items() for name in nested(arm, team))

    async def run(self, task: Task, team: Team) -> Outcome:
        arms = {arm: one for arm, one in _arms().items() if task.validate or arm != "fixed"}
        outcomes = await together([partial(one.run, task, team.sub(arm)) for arm, one in arms.items()])
        info: dict[str, float] = {}
        for arm, outcome in zip(arms, outcomes, strict=True):
            written = [reply.generation.sampled for reply in team.replies if reply.agent.startswith(f"{arm}_")]
            info |= {arm: outcome.reward or 0.0, f"{arm}_tokens": sum(written)}
            info |= {f"{arm}_{name}": float(str(value)) for name, value in outcome.info.items() if name != "acc"}
        return Outcome(answer="", reward=info["learnt"], info={"acc": info["learnt"], **info})


def _arms() -> dict[str, Workflow]:
    return {"learnt": LongList(), "fixed": FixedList(), "scrolls": Scrolls()}


@estimator(compares_sessions=True, one_baseline=True, needs=("instance",), baseline=None, scale=None, weighting=None)
def rao_of_each(batch: AdvantageInput, options: AdvantageOptions) -> AdvantageOutput:
    """`rao` for the rows of each team of `Arms` by themselves."""
    agents = batch.codes("agent")
    advantages = torch.zeros(len(batch), dtype=torch.float64)
    for arm in _arms():
        own = torch.tensor([str(name).startswith(f"{arm}_") for name in agents.names])[agents.ids]
        rows = own.nonzero().squeeze(1)
        if len(rows):
            found = rao.function(batch.select(rows), replace(options, main=f"{arm}_{ROLE}_0"))
            advantages.index_copy_(0, rows, found.advantages)
    tasks = batch.partition("task")
    return AdvantageOutput(advantages, tasks, moments(batch.scores.double(), tasks, options.deviation)[2])


def _range(node: Node) -> range:
    return range(*map(int, node.part.split()))


def seen(letters: str, part: range, at_most: int) -> str:
    """What a copy sees of its part."""
    shown = letters[part.start : part.stop][:WINDOW]
    cut = [CUT, str(len(part))] if len(part) > WINDOW else []
    return " ".join(["", *shown, *cut, MAY if at_most else MUST])


class Expert:
    """Delegates at random, whether its part fits or not, and answers with a wrong letter at a share of `noise`."""

    def __init__(self, noise: float, rng: random.Random):
        self._noise, self._rng = noise, rng

    def __call__(self, request: Request) -> str:
        words = request.messages[-1]["content"].split()
        letters = [word for word in words if word in LETTERS] or list(LETTERS)
        cut = CUT in words
        if words[-1] == MAY and len(request.messages) == 1 and self._rng.random() < (0.5 if cut else 0.2):
            return f" / {self._rng.choice((2, 4))}"
        answer = self._rng.choice(letters) if self._rng.random() < self._noise else largest_of("".join(letters))
        return f" = {answer}"


def lessons(noise: float, seed: int) -> Iterator[Lesson]:
    rng = random.Random(f"long list lessons {seed}")
    expert = Expert(noise, rng)
    while True:
        letters = draw(rng.choice((2, 4, 6, *TRAINED)), rng)
        task = Task([{"role": "user", "content": "largest"}], largest_of(letters), extra_info={LIST: letters})
        for team in (LongList(), LongList(max_depth=0), Scrolls()):
            for lesson in demonstrate(team, task, expert):
                # verl ends a turn of a conversation with a line break, whatever the chat template.
                yield replace(lesson, prompt=lesson.prompt.replace("<|im_end|>", "<|im_end|>\n"))


@DATA_SETS.register("long_list")
class LongLists(Generated):
    """Lists of several lengths, and those of four windows with the answers of other lists, as a control."""

    warm_up = WarmUp(steps=900, batch=64, lessons=6_000, texts=2_000, vocabulary=4_096, initial=0.1)
    rows = (2_000, 90)

    def options(self, parser: argparse.ArgumentParser) -> None:
        """None of its own."""

    def generate(self, options: argparse.Namespace) -> Prepared:
        train = items(options.train_rows, TRAINED, TRAIN, options.seed)
        test = items(options.test_rows, HELD_OUT, TEST, options.seed)
        of_four = [item for item in test if item.source == "list_32"]
        shuffled = [replace(item, truth=other.truth, source=SHUFFLED) for item, other in with_next(of_four)]
        return Prepared(
            train, test, [*test, *shuffled], {"long_list": {"lengths": list(HELD_OUT), "seed": options.seed}}
        )

    def lessons(self, options: argparse.Namespace) -> Iterator[Lesson]:
        return lessons(options.noise, options.seed)


if __name__ == "__main__":
    raise SystemExit(main(["data", "long_list", *sys.argv[1:]]))
