"""Reward function that uses only the scorer of a taskset of the package verifiers, so it can score any team's answer.

verl-mas data verifiers textarena --options game=Hangman-v0 --out runs/hangman
... reward.custom_reward_function.path=pkg://verl_mas.data.verifiers
... +reward.custom_reward_function.reward_kwargs.python=/path/bin/python
"""

import json
import sys

from verl_mas.errors import DataError
from verl_mas.gateway.host import host_of
from verl_mas.workflow.codecs import JsonObject
from verl_mas.workflows.verifiers import NUMBER, OPTIONS, PROGRAM

SOURCE = "verifiers/"  # prefix of `data_source`, before the id of the taskset


async def compute_score(
    data_source: str,
    solution_str: str,
    ground_truth: str,
    extra_info: JsonObject,
    python: str | None = None,
    folder: str | None = None,
    **_: object,
) -> dict[str, float]:
    """Score an answer as verifiers scores a rollout whose only reply is the answer. Returns the score with its parts
    and metrics."""
    if not data_source.startswith(SOURCE) or NUMBER not in extra_info:
        value, rule = f"data_source={data_source} and extra_info.{NUMBER}", "a row names a task of a taskset"
        raise DataError(value, rule=rule, fix="write the rows with `verl-mas data verifiers TASKSET --out FOLDER`")
    options = json.loads(extra_info.get(OPTIONS) or "{}")
    settings = {"taskset": data_source.removeprefix(SOURCE), "options": options, "environment": {}, "folder": folder}
    named = {"settings": settings, "number": int(extra_info[NUMBER]), "text": solution_str}
    task = {"messages": [], "extra_info": named}
    return await host_of(python or sys.executable).play(str(PROGRAM), "score", task, {"base_url": "", "api_key": ""})
