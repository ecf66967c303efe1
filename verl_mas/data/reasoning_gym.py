"""reasoning-gym's single-turn tasks for any workflow. A row names an item, whose verifier is the reward function.

verl-mas data reasoning_gym maze --out runs/maze
... reward.custom_reward_function.path=pkg://verl_mas.data.reasoning_gym
"""

import json
import zlib
from collections.abc import Mapping

from verl_mas.environment.worlds import world
from verl_mas.environment.worlds.hubs.reasoning_gym import Item, item
from verl_mas.errors import ConfigError, DataError
from verl_mas.util.splits import TRAIN, split_of
from verl_mas.workflow.client import DatasetFields
from verl_mas.workflow.codecs import Boxed

CHECKSUM = "checksum"  # field of a row with the checksum of its question; `world` defines the fields that name the item
_PATIENCE = 1_000  # consecutive items without a new question after which the search ends
_STRIDE = 10_000_000  # item numbers per training seed; the first _STRIDE numbers belong to the test split


def rows(task: str, count: int, split: str, seed: int, config: Mapping[str, object]) -> list[dict[str, object]]:
    """Make rows for `count` distinct questions. The content of a question decides its split, whatever the seed, and
    test questions do not depend on `seed`. A row names its item by task, options and number. From these, the reward
    function and the workflow `world` generate the item again."""
    settings = json.dumps(dict(config), sort_keys=True)
    of_question: dict[str, dict[str, object]] = {}
    repeats, start = 0, _STRIDE * (seed + 1) if split == TRAIN else 0
    for number in range(start, start + _STRIDE):
        made = item(task, settings, number)
        question = made.entry["question"]
        repeats += 1
        if question not in of_question and split_of(question) == split:
            named = {world.NAME: task, world.OPTIONS: settings, world.SEED: number, CHECKSUM: _checksum(made)}
            of_question[question] = _row(made, split, len(of_question), named)
            repeats = 0
        if len(of_question) == count:
            return list(of_question.values())
        if repeats == _PATIENCE:
            break
    value = f"{count} questions of {task} with {settings}"
    rule = f"only {len(of_question)} different ones were found for {split!r}"
    raise ConfigError(value, rule=rule, fix="use fewer rows, or a configuration with more questions")


def compute_score(
    data_source: str, solution_str: str, ground_truth: str, extra_info: DatasetFields, **_: object
) -> dict[str, float]:
    """Score the boxed answer by the task's verifier. A reply without a box is `malformed`."""
    # An item that cannot be generated is a mistake in the data, not in the reply.
    return item_of(extra_info).score(Boxed().parse(solution_str))


def item_of(extra_info: DatasetFields) -> Item:
    """Find the item that a row names."""
    for key in (world.NAME, world.OPTIONS, world.SEED, CHECKSUM):
        if key not in extra_info:
            value = f"extra_info has no {key!r}"
            rule = "this reward function needs rows that name an item of reasoning-gym"
            raise DataError(value, rule=rule, fix="write them with `verl-mas data reasoning_gym TASK --out FOLDER`")
    task, number = extra_info[world.NAME], int(extra_info[world.SEED])
    named = item(task, extra_info[world.OPTIONS], number)
    if _checksum(named) != extra_info[CHECKSUM]:
        value = f"item {number} of {task} is a different question now"
        rule = "rows are used with the version of reasoning-gym that wrote them"
        raise DataError(value, rule=rule, fix="write the rows again")
    return named


def _row(made: Item, split: str, index: int, named: Mapping[str, object]) -> dict[str, object]:
    return {
        "data_source": f"reasoning_gym/{named[world.NAME]}",
        "prompt": [{"role": "user", "content": f"{made.prompt}\n\n{Boxed().prompt()}"}],
        # The answer of an item may be None if its task has many solutions.
        "reward_model": {"style": "rule", "ground_truth": made.entry["answer"] or ""},
        "extra_info": {"split": split, "index": index, **named},
    }


def _checksum(made: Item) -> int:
    return zlib.crc32(made.entry["question"].encode())
