"""Questions with their ground truth and source, as rows that verl reads."""

import random
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from verl_mas.environment.grading.qa import golden_answers
from verl_mas.environment.retrieval.files import Row
from verl_mas.errors import ConfigError, DataError

# Instructions in DAPO's problems. They are removed, because a workflow's prompts say how to answer.
INSTRUCTIONS = re.compile(
    r"^Solve the following math problem step by step\..*?where \$Answer is the answer to the problem\.\s*"
    r'|\s*Remember to put your answer on its own line after "Answer:"\.\s*$'
    r"|(\\n|\s)*Let'?s think step by step and output the final answer within \\boxed\{\}\.\s*$",
    re.IGNORECASE | re.DOTALL,
)
QUESTION_FIELDS, ANSWER_FIELDS = ("problem", "question"), ("answer", "golden_answers", "answers")


@dataclass(frozen=True)
class Item:
    """A question with its ground truth, which is a string for math and a list of accepted answers for search."""

    question: str
    truth: str | list[str]
    source: str
    extra: Mapping[str, object] = field(default_factory=dict, kw_only=True)  # further fields of the row's extra_info

    @property
    def key(self) -> str:
        """The identity of the question: case, whitespace and the final punctuation mark are ignored."""
        return "".join(self.question.casefold().split()).rstrip(".?!")

    def row(self, index: int, split: str) -> dict[str, object]:
        return {
            "data_source": self.source,
            "prompt": [{"role": "user", "content": self.question}],
            "reward_model": {"style": "rule", "ground_truth": self.truth},
            "extra_info": {"split": split, "index": index, **self.extra},
        }


T = TypeVar("T")
Kind = TypeVar("Kind", bound=Item)


def math_item(row: Row, number: int, source: str) -> Item:
    truth = _truth(row)
    if truth is not None and (isinstance(truth, bool) or not isinstance(truth, str | int | float) or truth != truth):
        value = f"{source}, row {number} has the ground truth {truth!r}"
        rule = "a math problem has one answer, a text or a number"
        raise DataError(value, rule=rule, fix="give the answer itself, not a list or a mapping")
    text = "" if truth is None else str(truth).strip()
    if not text:
        raise _no_truth(row, number, source)
    return Item(_question(row, number, source), text, source)


def search_item(row: Row, number: int, source: str) -> Item:
    try:
        truth = golden_answers(_truth(row))
    except DataError as error:
        raise _no_truth(row, number, source) from error
    return Item(_question(row, number, source), truth, row.get("data_source") or source)


def _question(row: Row, number: int, source: str) -> str:
    text = next((row[name] for name in QUESTION_FIELDS if row.get(name)), None)
    if text is None and (prompt := row.get("prompt")):
        text = prompt if isinstance(prompt, str) else prompt[-1]["content"]
    cleaned = INSTRUCTIONS.sub("", text).strip() if isinstance(text, str) else ""
    if not cleaned:
        value = f"{source}, row {number} has no question"
        rule = f"a row has one of the fields {', '.join(QUESTION_FIELDS)}, or a prompt"
        raise DataError(value, rule=rule, fix=f"correct the row; its fields are {', '.join(map(str, row)) or 'none'}")
    return cleaned


def _truth(row: Row) -> object:
    reward_model = row.get("reward_model")
    if isinstance(reward_model, Mapping) and reward_model.get("ground_truth") is not None:
        return reward_model["ground_truth"]
    return next((row[name] for name in ANSWER_FIELDS if row.get(name) is not None), None)


def _no_truth(row: Row, number: int, source: str) -> DataError:
    rule = f"a row has one of the fields {', '.join(ANSWER_FIELDS)}, or reward_model.ground_truth"
    fix = f"correct or remove the row; its fields are {', '.join(map(str, row)) or 'none'}"
    return DataError(f"{source}, row {number} has no ground truth", rule=rule, fix=fix)


def distinct(items: Iterable[Kind]) -> list[Kind]:
    """Keep the first item of each question."""
    return list({item.key: item for item in reversed(list(items))}.values())[::-1]


def overlap(train: Sequence[Kind], test: Sequence[Item]) -> list[Kind]:
    """Find training items whose questions are also among the test items."""
    tested = {item.key for item in test}
    return [item for item in train if item.key in tested]


def sampled(every: Sequence[T], count: int | None, rng: random.Random, *, kind: str, split: str) -> list[T]:
    """Sample different tasks of a split, in random order; without `count`, all of them."""
    if count is not None and count > len(every):
        rule = f"there are only {len(every)} in {split!r} (train or test)"
        raise ConfigError(f"{count} {kind}", rule=rule, fix="use fewer rows")
    return rng.sample(every, count or len(every))


def with_next(items: Sequence[Kind]) -> list[tuple[Kind, Kind]]:
    """Pair each item with the next item, and the last item with the first. Control experiments use the pairs to give
    an item a part of another item."""
    return list(zip(items, [*items[1:], *items[:1]], strict=True))


def first_of_each(items: Sequence[Kind], limits: Mapping[str, int], otherwise: int) -> list[Kind]:
    """Take the first `limits[source]` items of each source, as a small, fixed validation set."""
    taken: Counter[str] = Counter()
    kept = []
    for item in items:
        taken[item.source] += 1
        if taken[item.source] <= limits.get(item.source, otherwise):
            kept.append(item)
    return kept
