"""reasoning-gym's single-turn tasks for any workflow: rows that name an item, and its verifier as reward function.

verl-mas data reasoning_gym maze --out runs/maze
... reward.custom_reward_function.path=pkg://verl_mas.data.reasoning_gym
"""

from __future__ import annotations

import importlib
import importlib.util
import json
import zlib
from collections.abc import Iterator, Mapping
from functools import lru_cache
from typing import Any, Protocol, TypedDict

from verl_mas.errors import ConfigError, DataError, SessionFault, failures
from verl_mas.registry import nearest
from verl_mas.util.splits import TRAIN, split_of
from verl_mas.workflow.codecs import Boxed, Malformed

TASK, CONFIG, SEED, PLACE, CHECKSUM = "task", "config", "seed", "place", "checksum"
_SET = 64  # some tasks plan the whole data set when it is created, so items come in sets of a fixed size
_PATIENCE = 1_000  # repeats in a row after which no new question is expected
_STRIDE = 10_000_000  # the distance of the first sets of two training seeds; the test split has the seeds below


class GymQuestion(TypedDict):
    question: str
    answer: str | None


class GymDataset(Protocol):
    """One set of a task's items."""

    def __getitem__(self, place: int) -> GymQuestion: ...

    def score_answer(self, answer: str, entry: GymQuestion) -> float: ...


def rows(task: str, count: int, split: str, seed: int, config: Mapping[str, object]) -> list[dict[str, object]]:
    """`count` distinct questions. The content of a question decides its split, whatever the seed. Test questions do not
    depend on `seed`. A row names its item, which is generated again for the verifier."""
    settings = json.dumps(dict(config), sort_keys=True)
    of_question: dict[str, dict[str, object]] = {}
    repeats = 0
    for first, place in _places(split, seed):
        item = _items(task, settings, first)[place]
        question = item["question"]
        repeats += 1
        if question not in of_question and split_of(question) == split:
            named = {TASK: task, CONFIG: settings, SEED: first, PLACE: place, CHECKSUM: _checksum(item)}
            of_question[question] = _row(item, split, len(of_question), named)
            repeats = 0
        if len(of_question) == count:
            return list(of_question.values())
        if repeats == _PATIENCE:
            break
    value = f"{count} questions of {task} with {settings}"
    rule = f"only {len(of_question)} different ones were found for {split!r}"
    raise ConfigError(value, rule=rule, fix="use fewer rows, or a configuration with more questions")


def compute_score(
    data_source: str, solution_str: str, ground_truth: str, extra_info: Mapping[str, Any], **_: object
) -> dict[str, float]:
    """The score of the boxed answer by the task's verifier, 0 to 1; `acc` is 1 for a complete solution. A reply without
    a box is `malformed`. An answer on which the verifier raises is `unchecked`."""
    answer = Boxed().parse(solution_str)
    malformed, unchecked, score = isinstance(answer, Malformed), False, 0.0
    # Outside the boundary: an item that cannot be generated is an error of the data, not of the reply.
    items, item = item_of(extra_info)
    if not isinstance(answer, Malformed):
        try:
            with failures():
                score = float(items.score_answer(answer, item))
        except SessionFault:
            unchecked = True
    return {"score": score, "acc": float(score >= 1.0), "malformed": float(malformed), "unchecked": float(unchecked)}


def item_of(extra_info: Mapping[str, Any]) -> tuple[GymDataset, GymQuestion]:
    """The data set and the item that a row names."""
    for key in (TASK, CONFIG, SEED, PLACE, CHECKSUM):
        if key not in extra_info:
            value = f"extra_info has no {key!r}"
            rule = "this reward function needs rows that name an item of reasoning-gym"
            raise DataError(value, rule=rule, fix="write them with `verl-mas data reasoning_gym TASK --out FOLDER`")
    task, place = extra_info[TASK], int(extra_info[PLACE])
    items = _items(task, extra_info[CONFIG], int(extra_info[SEED]))
    item = _item(task, extra_info[CONFIG], int(extra_info[SEED]), place)
    if _checksum(item) != extra_info[CHECKSUM]:
        value = f"{task}, seed {extra_info[SEED]}, place {place} is a different question now"
        rule = "rows are used with the version of reasoning-gym that wrote them"
        raise DataError(value, rule=rule, fix="write the rows again")
    return items, item


def _places(split: str, seed: int) -> Iterator[tuple[int, int]]:
    """The seed of the set and the place of each item. Most tasks add the two, so seeds are a set's size apart."""
    start = _STRIDE * (seed + 1) if split == TRAIN else 0
    for first in range(start, start + _STRIDE, _SET):
        for place in range(_SET):
            yield first, place


def _row(item: GymQuestion, split: str, index: int, named: Mapping[str, object]) -> dict[str, object]:
    return {
        "data_source": f"reasoning_gym/{named[TASK]}",
        "prompt": [{"role": "user", "content": f"{item['question'].strip()}\n\n{Boxed().prompt()}"}],
        # Tasks with many solutions give no answer.
        "reward_model": {"style": "rule", "ground_truth": item["answer"] or ""},
        "extra_info": {"split": split, "index": index, **named},
    }


def _checksum(item: GymQuestion) -> int:
    return zlib.crc32(item["question"].encode())


@lru_cache(maxsize=64)
def _items(task: str, settings: str, seed: int) -> GymDataset:
    """One set of the task's items, each generated on access."""
    if importlib.util.find_spec("reasoning_gym") is None:
        rule = "its tasks and verifiers are in the package reasoning-gym"
        raise ConfigError("reasoning-gym is not installed", rule=rule, fix="pip install 'verl-mas[reasoning-gym]'")
    gym = importlib.import_module("reasoning_gym")
    known = sorted(gym.factory.DATASETS)
    if task not in known:
        raise ConfigError(f"task {task!r}", rule="it is a task of reasoning-gym", fix=nearest(task, known))
    try:
        items: GymDataset = gym.create_dataset(task, seed=seed, size=_SET, **json.loads(settings))
    except (TypeError, AssertionError, ValueError) as error:
        fix = f"use settings of {gym.factory.DATASETS[task][1].__name__}, in its ranges"
        raise ConfigError(f"{task} with {settings}", rule=f"reasoning-gym: {error}", fix=fix) from error
    return items


@lru_cache(maxsize=4096)
def _item(task: str, settings: str, seed: int, place: int) -> GymQuestion:
    """Cached for the sessions of a task, since slow tasks take hundreds of milliseconds per item."""
    return _items(task, settings, seed)[place]
