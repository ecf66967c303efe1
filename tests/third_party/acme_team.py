"""A third-party package that adds one entry of each kind. As a file of mas.plugins, it adds the same entries."""

from __future__ import annotations

import re
from collections.abc import Sequence

from verl_mas import (
    AdvantageInput,
    AdvantageOptions,
    AdvantageOutput,
    Answer,
    Call,
    Execution,
    Limits,
    Outcome,
    Puzzle,
    Result,
    Status,
    Task,
    Team,
    Workflow,
    estimator,
    grader,
    register_commit_rule,
    register_engine,
    register_executor,
    register_grader,
    register_puzzle,
    register_workflow,
    within,
)
from verl_mas.engines.facts import EngineFacts, EngineMemory


@register_workflow("acme_guess")
class Guess(Workflow):
    agents = ("guesser",)
    branches = True

    async def run(self, task: Task, team: Team) -> Outcome:
        chosen = team.commit(await team.guesser.branch(task.messages))
        return Outcome(answer=chosen, reward=await grader("acme_same")(task.ground_truth, chosen.text))


@estimator(needs=("local_reward",), scale="none")
def acme_mean(batch: AdvantageInput, options: AdvantageOptions) -> AdvantageOutput:
    return within(batch, batch.partition("task"), options)


@register_grader("acme_same")
def same(truth: object, answer: str) -> float:
    return float(answer == truth)


@register_executor("acme_echo")
class Echo:
    """Prints the program instead of running it."""

    def __init__(self, settings: Execution):
        self.settings = settings

    def check(self) -> None:
        """Do nothing: printing a program always works."""

    async def execute(self, program: str, stdin: str = "", limits: Limits | None = None) -> Result:
        return Result(Status.OK, stdout=program)

    async def call(self, program: str, calls: Sequence[Call], limits: Limits | None = None) -> list[Answer]:
        return [Answer(error="it runs nothing")] * len(calls)

    async def aclose(self) -> None:
        """Do nothing: there is nothing to end."""


@register_commit_rule("acme_last", needs_scores=False)
def last(scores: Sequence[float], temperature: float, rng: object) -> int:
    return len(scores) - 1


@register_puzzle("acme_countdown")
class Countdown(Puzzle):
    """Say "down" until nothing is left."""

    name = "acme_countdown"
    rules = "Count down to 0."
    action_help = "down"
    action_pattern = re.compile("down")

    def __init__(self, start: int):
        self.initial_distance = self.left = start

    @classmethod
    def generate(cls, seed: int, split: str = "train", start: int = 3) -> Countdown:
        return cls(start)

    def copy(self) -> Countdown:
        other = Countdown(self.initial_distance)
        other.left = self.left
        return other

    def legal_actions(self) -> Sequence[str]:
        return ("down",) if self.left else ()

    def step(self, action: str) -> bool:
        legal = action in self.legal_actions()
        self.left -= legal
        return legal

    def distance(self) -> int:
        return self.left

    def value(self) -> float:
        return 1 - self.left / self.initial_distance

    def render(self) -> str:
        return str(self.left)

    compact = render


class Replica:
    """The class that would start servers."""


class Adapter:
    """The class that would send weights to the servers."""


FACTS = EngineFacts(
    gpu_fraction=True,
    memory=EngineMemory(of_free=True, holds_context=False),
    batch_limit=True,
    sampling=lambda: frozenset({"temperature", "top_p", "max_tokens"}),
)
register_engine("acme", replica=f"{__name__}.Replica", adapter=f"{__name__}.Adapter", facts=FACTS)
