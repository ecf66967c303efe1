"""reasoning-gym's single-step tasks for any workflow: rows that name an item; its verifier is the reward function.

verl-mas reasoning_gym maze --out runs/maze
... reward.custom_reward_function.path=pkg://verl_mas.data.reasoning_gym
"""

from __future__ import annotations

import importlib.util
import json
import zlib
from collections.abc import Iterator, Mapping
from functools import lru_cache
from types import ModuleType
from typing import Any

from verl_mas.errors import ConfigError, DataError, SessionFault, failures
from verl_mas.registry import nearest
from verl_mas.splits import TRAIN, split_of
from verl_mas.workflow.codecs import Boxed, Malformed

TASK, CONFIG, SEED, PLACE, CHECKSUM = "task", "config", "seed", "place", "checksum"
# Some tasks draw a plan for the whole data set when they are made, so items come in sets of a fixed size.
_SET = 64
# Questions drawn without a new one, after which there is taken to be none.
_PATIENCE = 1_000
# Between the first sets of two training seeds; testing has the seeds below.
_STRIDE = 10_000_000


def rows(task: str, count: int, split: str, seed: int, config: Mapping[str, Any]) -> list[dict[str, Any]]:
    """`count` different questions. A question is for training or for testing by its own content, whatever the seed.

    A test stream does not depend on `seed`. Rows name their item; its verifier needs it whole, so it is made again.
    """
    settings = json.dumps(dict(config), sort_keys=True)
    found: dict[str, dict[str, Any]] = {}
    in_vain = 0
    for first, place in _places(split, seed):
        item = _items(task, settings, first)[place]
        question = item["question"]
        in_vain += 1
        if question not in found and split_of(question) == split:
            found[question] = _row(item, task, settings, first, place, split, len(found))
            in_vain = 0
        if len(found) == count:
            return list(found.values())
        if in_vain == _PATIENCE:
            break
    raise ConfigError(
        f"{count} questions of {task} with {settings}",
        rule=f"only {len(found)} different ones were found for {split!r}",
        fix="ask for fewer, or for a setting with more of them",
    )


def compute_score(
    data_source: str, solution_str: str, ground_truth: str, extra_info: Mapping[str, Any], **_: Any
) -> dict[str, float]:
    """What the task's own verifier gives the box of an answer: 0 to 1, and `acc` is 1 for a whole solution.

    Without a box nothing is verified. A few verifiers raise on answers that they cannot read: `unchecked`.
    """
    answer = Boxed().parse(solution_str)
    malformed, unchecked, score = isinstance(answer, Malformed), False, 0.0
    # The item is made outside the boundary: a row that names none is the data's fault, not the reply's.
    items, item = item_of(extra_info)
    if not isinstance(answer, Malformed):
        try:
            with failures():
                score = float(items.score_answer(answer, item))
        except SessionFault:
            unchecked = True
    return {
        "score": score,
        "acc": float(score >= 1.0),
        "malformed": float(malformed),
        "unchecked": float(unchecked),
    }


def item_of(extra_info: Mapping[str, Any]) -> tuple[Any, dict[str, Any]]:
    """The data set and the item that a row names."""
    for key in (TASK, CONFIG, SEED, PLACE, CHECKSUM):
        if key not in extra_info:
            raise DataError(
                f"extra_info has no {key!r}",
                rule="this reward function needs rows that name an item of reasoning-gym",
                fix="make them with verl-mas reasoning_gym",
            )
    task, place = extra_info[TASK], int(extra_info[PLACE])
    items = _items(task, extra_info[CONFIG], int(extra_info[SEED]))
    item = _item(task, extra_info[CONFIG], int(extra_info[SEED]), place)
    if _checksum(item) != extra_info[CHECKSUM]:
        raise DataError(
            f"{task}, seed {extra_info[SEED]}, place {place} is another question now",
            rule="rows and verifier come from one version of reasoning-gym",
            fix="write the rows again",
        )
    return items, item


def require_reasoning_gym() -> ModuleType:
    if importlib.util.find_spec("reasoning_gym") is None:
        raise ConfigError(
            "reasoning-gym is not installed",
            rule="its tasks and verifiers are not ours",
            fix="pip install 'verl-mas[reasoning-gym]'",
        )
    import reasoning_gym

    return reasoning_gym


def _places(split: str, seed: int) -> Iterator[tuple[int, int]]:
    """Every item of a stream: its set's seed and its place. Most tasks add the two, so sets lie that far apart."""
    start = _STRIDE * (seed + 1) if split == TRAIN else 0
    for first in range(start, start + _STRIDE, _SET):
        for place in range(_SET):
            yield first, place


def _row(
    item: Mapping[str, Any], task: str, settings: str, seed: int, place: int, split: str, index: int
) -> dict[str, Any]:
    return {
        "data_source": f"reasoning_gym/{task}",
        "prompt": [{"role": "user", "content": f"{item['question'].strip()}\n\n{Boxed().prompt()}"}],
        # Tasks with many solutions name none.
        "reward_model": {"style": "rule", "ground_truth": item["answer"] or ""},
        "extra_info": {
            "split": split,
            "index": index,
            TASK: task,
            CONFIG: settings,
            SEED: seed,
            PLACE: place,
            CHECKSUM: _checksum(item),
        },
    }


def _checksum(item: Mapping[str, Any]) -> int:
    return zlib.crc32(item["question"].encode())


@lru_cache(maxsize=64)
def _items(task: str, settings: str, seed: int) -> Any:
    """One set of the task's items, made one by one when they are asked for."""
    gym = require_reasoning_gym()
    known = sorted(gym.factory.DATASETS)
    if task not in known:
        raise ConfigError(f"task {task!r}", rule="it is a task of reasoning-gym", fix=nearest(task, known))
    try:
        return gym.create_dataset(task, seed=seed, size=_SET, **json.loads(settings))
    except (TypeError, AssertionError, ValueError) as error:
        raise ConfigError(
            f"{task} with {settings}",
            rule=f"reasoning-gym: {error}",
            fix=f"the settings and their ranges are those of {gym.factory.DATASETS[task][1].__name__}",
        ) from error


@lru_cache(maxsize=4096)
def _item(task: str, settings: str, seed: int, place: int) -> dict[str, Any]:
    """Slow tasks take hundreds of milliseconds an item; the sessions of a task share it."""
    return _items(task, settings, seed)[place]
