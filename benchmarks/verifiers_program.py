"""Compare sessions of verifiers through the gateway with verifiers alone, in CPU time and in their rewards.

    python -m benchmarks.verifiers_program 1000

The tasksets of the tests get random replies. Verifiers alone is its `run_episode` with a client that replies at once.
"""

from __future__ import annotations

import asyncio
import json
import random
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import median
from typing import Any
from unittest.mock import patch

import verifiers.v1 as vf
from verifiers.v1.interception import server

from verl_mas.environment.worlds import verifiers_program
from verl_mas.testing.scripted_llm import ScriptedLLM
from verl_mas.workflow import Task
from verl_mas.workflow.run import run
from verl_mas.workflows.verifiers import NUMBER, Verifiers

FOLDER = Path(__file__).parents[1] / "tests" / "support" / "verifiers_tasks"
TEAMS = {
    "reverse_word": (("agent",), "abc"),
    "higher_lower": (("player",), [*"0123456789", "none"]),
    "split_coins": (("giver", "taker"), [*"0123456789", "11", "yes", "no"]),
}


class Alone(vf.Client):
    """A client that returns the given replies in order."""

    def __init__(self, replies: Iterator[str]):
        self._replies = replies

    async def get_response(self, dialect: Any, body: Any, *_: object, **__: object) -> vf.Response:
        message = {"role": "assistant", "content": next(self._replies)}
        choice = {"index": 0, "message": message, "finish_reason": "stop"}
        raw = {"id": "act", "object": "chat.completion", "created": 0, "model": body["model"], "choices": [choice]}
        response = dialect.parse_response(dialect.validate_response(raw))
        response.raw = raw
        return response


def texts(taskset: str, number: int) -> Sequence[str]:
    chance, some = random.Random(number), TEAMS[taskset][1]
    return ["".join(chance.choices(some, k=3)) if isinstance(some, str) else chance.choice(some) for _ in range(8)]


async def alone(workflow: Verifiers, number: int) -> tuple[float, float]:
    """Run an episode in verifiers alone. Return its reward and CPU seconds."""
    played = verifiers_program.environment(json.dumps(workflow.settings({}), sort_keys=True))
    replies = iter(texts(workflow.taskset, number))
    with patch.object(server, "resolve_client", lambda _: Alone(replies)):
        began = time.process_time()
        episode = await played.episode(number % 50, vf.EvalClientConfig(base_url="http://none", api_key_var="NONE"))
    return verifiers_program.outcome(episode, workflow.agents)["reward"], time.process_time() - began


def through_gateway(workflow: Verifiers, number: int) -> tuple[float, float]:
    """Run an episode through the gateway. Return its reward, and CPU seconds without verifiers' process."""
    replies = iter(texts(workflow.taskset, number))
    task, began = Task([], "", extra_info={NUMBER: number % 50}), time.process_time()
    session = run(workflow, task, ScriptedLLM(lambda request, branch: next(replies)))
    return float(session.team_reward or 0.0), time.process_time() - began


def main(count: int) -> None:
    for taskset, (agents, _) in TEAMS.items():
        workflow = Verifiers(taskset=taskset, folder=str(FOLDER), agents=agents)
        began, different, own, ours = time.monotonic(), 0, [], []
        for number in range(count):
            (reward, seconds), (same, more) = asyncio.run(alone(workflow, number)), through_gateway(workflow, number)
            own.append(seconds)
            ours.append(more)
            different += abs(reward - same) > 1e-9
        took = f"{median(own) * 1e3:.1f} ms alone, and {median(ours) * 1e3:.1f} ms of the worker through the gateway"
        print(f"{taskset}: {count} episodes, {different} with another reward, {took}, {time.monotonic() - began:.0f} s")


if __name__ == "__main__":
    main(int(sys.argv[1]))
