"""The base of workflows in which a coder writes programs for a problem with hidden tests."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

from verl_mas.config.values import Count
from verl_mas.environment.coding.attempts import ProgramAttempt, Runner, give_team_parts
from verl_mas.environment.coding.prompts import PROMPTS, Words
from verl_mas.environment.execution.executor import Execution
from verl_mas.workflow import Malformed, Reply, Team, Workflow


@dataclass(frozen=True)
class Written:
    """The coder's act of one turn: all candidates, and the committed candidate."""

    candidates: Sequence[ProgramAttempt]
    committed: ProgramAttempt


class CodeTeam(Workflow):
    """Base class: subclasses define `agents` and `run`, and this class runs and rewards the coder's programs.

    Hidden tests affect only the rewards: no prompt contains them, and no session ends because of them.
    """

    branches = True
    max_turns: Count = 4
    """The maximum number of turns. In a turn every agent acts once."""

    text: Literal["words", "compact"] = "words"
    """words: prompts for language models. compact: prompts of a few characters, for tiny models."""

    reward: Literal["dense", "sparse"] = "dense"
    """dense: the share of hidden tests passed, and a local part per act. sparse: 1 if all are passed, else 0."""

    execution: Execution = field(default_factory=Execution)
    """How the programs are run."""

    @property
    def sparse(self) -> bool:
        return self.reward == "sparse"

    @property
    def prompts(self) -> Words:
        return PROMPTS[self.text]

    def check(self) -> None:
        self.execution.check()

    async def committed(self, team: Team, runner: Runner, replies: Sequence[Reply]) -> Written:
        """Run and reward each of the coder's candidates, and commit one."""
        attempts = await runner.attempts([self.program(reply) for reply in replies])
        for reply, attempt in zip(replies, attempts, strict=True):
            reply.reward = 0.0 if self.sparse else attempt.reward
        give_team_parts(replies, [self.value(attempt) for attempt in attempts])
        return Written(attempts, dict(zip(replies, attempts, strict=True))[team.commit(replies)])

    def program(self, reply: Reply) -> str | None:
        code = reply.parse(self.prompts.program)
        return None if isinstance(code, Malformed) else code

    def value(self, attempt: ProgramAttempt) -> float:
        """The team's reward for a program."""
        return float(attempt.right) if self.sparse else attempt.share
