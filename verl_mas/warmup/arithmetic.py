"""Demonstrations of teams on arithmetic chains: step by step, with errors at a set rate."""

from __future__ import annotations

import random
from collections.abc import Iterator

from verl_mas.config.schema import WorkflowSpec
from verl_mas.data.arithmetic import chain_split, draw, signed
from verl_mas.splits import TRAIN
from verl_mas.warmup.demonstrations import Lesson, demonstrate
from verl_mas.workflow import Boxed, Request, Task
from verl_mas.workflow.base import resolve
from verl_mas.workflows.solver_verifier import Verdict

# Workflows whose agents, but for a `verifier`, answer with a box.
TEAMS = ("solver_verifier", "debate", "generate_verify_refine", "cory")


def lessons(
    terms: int, largest: int, *, noise: float, seed: int = 0, team: str = "solver_verifier"
) -> Iterator[Lesson]:
    """Endless; only training chains. `noise` is the share of steps whose result is random."""
    rng = random.Random(f"lessons {seed}")
    workflow = resolve(WorkflowSpec(team))
    while True:
        chain = draw(terms, largest, rng)
        if chain_split(chain) == TRAIN:
            task = Task([{"role": "user", "content": chain}], ground_truth=str(sum(signed(chain))))
            yield from demonstrate(workflow, task, ScriptedTeam(chain, largest, noise, rng))


class ScriptedTeam:
    """Each agent works through the chain and ends with the result, or a verifier with its verdict."""

    def __init__(self, chain: str, largest: int, noise: float, rng: random.Random):
        self._first, *self._steps = signed(chain)
        self._largest, self._noise, self._rng = largest, noise, rng
        self._proposed = 0

    def __call__(self, request: Request) -> str:
        working, result = self._work()
        if request.agent != "verifier":
            self._proposed = result
            return f"{working} {Boxed().render(str(result))}"
        verdict = Verdict.APPROVE if result == self._proposed else Verdict.REJECT
        return f"{working} {Verdict.render(verdict)}"

    def _work(self) -> tuple[str, int]:
        """For 7+1-2= the text 7+1=8-2=6, and the 6. A wrong result is used by the next step."""
        total, working = self._first, str(self._first)
        for step in self._steps:
            total = min(self._largest, max(0, total + step))
            if self._rng.random() < self._noise:
                total = self._rng.randint(0, self._largest)
            working += f"{step:+d}={total}"
        return working, total
