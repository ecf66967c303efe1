"""Split clues: one of eight letters is right, each agent's clues leave a few letters, and only one is left by all."""

from __future__ import annotations

import itertools
import random
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from verl_mas.data.items import Item, with_next
from verl_mas.errors import ConfigError, DataError
from verl_mas.util.splits import TRAIN, split_of
from verl_mas.workflow.client import DatasetFields

LETTERS = "abcdefgh"
# By the number of parts: how many letters a part alone rules out, so that every part is needed.
RULED_OUT = {2: 2, 3: 1, 4: 1}
SOURCE, SHUFFLED = "split_clues", "split_clues_shuffled"
PARTS, HINT = "parts", "hint"
# The share of the hints that name a wrong letter; None: there are no hints.
Decoys = float | None


@dataclass(frozen=True)
class Clues:
    """A task: the letter that is right, and for each agent the letters that its clues leave.

    `hint` is a letter that all agents read, or nothing.
    """

    answer: str
    parts: tuple[str, ...]
    hint: str = ""

    @property
    def question(self) -> str:
        return "|".join(self.parts) + (f"+{self.hint}" if self.hint else "") + "?"


def clues(split: str, parts: int = 2) -> Iterator[Clues]:
    """All tasks of a split.

    The letters that are left by some part decide the split. So a part alone leaves each of its letters equally often
    to be right within a split, too.
    """
    if parts not in RULED_OUT:
        raise ConfigError(f"{parts} parts", rule=f"there are {', '.join(map(str, RULED_OUT))}", fix="use 2")
    alone = RULED_OUT[parts]
    for letters in itertools.combinations(LETTERS, 1 + parts * alone):
        if split_of("".join(letters)) != split:
            continue
        for answer in letters:
            wrong = [letter for letter in letters if letter != answer]
            yield from (Clues(answer, _left(answer, groups)) for groups in _groups(wrong, alone))


def _groups(letters: Sequence[str], size: int) -> Iterator[tuple[tuple[str, ...], ...]]:
    """The letters in ordered groups of `size`, in every way."""
    if not letters:
        yield ()
    for group in itertools.combinations(letters, size):
        rest = [letter for letter in letters if letter not in group]
        yield from ((group, *others) for others in _groups(rest, size))


def _left(answer: str, groups: Sequence[Sequence[str]]) -> tuple[str, ...]:
    """Of each part the letters left, where part k rules out group k."""
    others = [itertools.chain(*groups[:k], *groups[k + 1 :]) for k in range(len(groups))]
    return tuple("".join(sorted((answer, *wrong))) for wrong in others)


def hints(task: Clues, decoys: Decoys) -> dict[str, float]:
    """The hints of a task and their probabilities: the right letter, or one of the wrong letters that a part leaves."""
    if decoys is None:
        return {"": 1.0}
    wrong = sorted(set("".join(task.parts)) - {task.answer})
    return {task.answer: 1 - decoys} | {letter: decoys / len(wrong) for letter in wrong}


def with_hint(task: Clues, decoys: Decoys, rng: random.Random) -> Clues:
    found = hints(task, decoys)
    return replace(task, hint=rng.choices(list(found), list(found.values()))[0])


def floor(tasks: Iterable[Clues], part: int, decoys: Decoys = None) -> float:
    """The success of the best rule that reads one part and the hint: it knows how often each letter is right."""
    right: defaultdict[tuple[str, str], defaultdict[str, float]] = defaultdict(lambda: defaultdict(float))
    for task in tasks:
        for hint, probability in hints(task, decoys).items():
            right[task.parts[part], hint][task.answer] += probability
    total = sum(sum(shares.values()) for shares in right.values())
    return sum(max(shares.values()) for shares in right.values()) / total


@dataclass(frozen=True)
class ClueItem(Item):
    parts: tuple[str, ...] = ()
    hint: str = ""

    def row(self, index: int, split: str) -> dict[str, object]:
        made = super().row(index, split)
        made["extra_info"] = {"split": split, "index": index, PARTS: list(self.parts), HINT: self.hint}
        return made


def items(
    count: int | None, *, split: str = TRAIN, seed: int = 0, parts: int = 2, decoys: Decoys = None
) -> list[ClueItem]:
    """Different tasks of a split, in random order; all of them without a `count`."""
    found = list(clues(split, parts))
    if count is not None and count > len(found):
        raise ConfigError(
            f"{count} tasks of {parts} parts", rule=f"there are only {len(found)} in {split!r}", fix="use fewer rows"
        )
    rng = random.Random(f"{split} {seed}")
    drawn = [with_hint(task, decoys, rng) for task in rng.sample(found, count or len(found))]
    return [ClueItem(task.question, task.answer, SOURCE, task.parts, task.hint) for task in drawn]


def shuffled(tasks: Sequence[ClueItem]) -> list[ClueItem]:
    """The control: in each task, all agents but the last one have the clues of the next task.

    Messages keep their distribution, and say nothing about the answer.
    """
    return [
        replace(task, source=SHUFFLED, parts=(*other.parts[:-1], task.parts[-1])) for task, other in with_next(tasks)
    ]


def clues_of(extra_info: DatasetFields, answer: object, parts: int) -> Clues:
    """The task of a dataset row."""
    given = extra_info.get(PARTS)
    if given is None or len(given) != parts or answer not in list(LETTERS):
        raise DataError(
            f"a row with extra_info.{PARTS}={given!r:.200} and the ground truth {answer!r:.80}",
            rule=f"split_clues with mas.workflow.args.parts={parts} needs rows with {parts} parts and a right letter",
            fix=f"create them with `verl-mas data split_clues --out <folder> --parts {parts}`",
        )
    return Clues(str(answer), tuple(map(str, given)), str(extra_info.get(HINT) or ""))
