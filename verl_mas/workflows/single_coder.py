"""One coder, who reads the output of its program for the examples: the control for `coder_tester`."""

from verl_mas.environment.coding.prompts import Feedback, WrittenCase
from verl_mas.environment.coding.team import CodeTeam, ProgramAttempt, Runner
from verl_mas.workflow import Outcome, Task, Team, register_workflow


@register_workflow("single_coder")
class SingleCoder(CodeTeam):
    """A coder that tries again while its program fails an example of the problem, for at most `max_turns` turns."""

    agents = ("coder",)

    async def run(self, task: Task, team: Team) -> Outcome:
        runner = Runner.of(task.ground_truth, self.execution)
        candidates: list[ProgramAttempt] = []
        last: Feedback | None = None
        turns = 0
        while True:
            replies = await team.coder.branch(self.prompts.solve(task, runner.problem, last))
            written = await self.committed(team, runner, replies)
            candidates += written.candidates
            turns += 1
            last = await _failed_example(runner, written.committed)
            if last is None or turns == self.max_turns:
                break
        final = written.committed
        return Outcome(
            answer=final.program,
            reward=self.value(final),
            info={
                "acc": float(final.right),
                "share": final.share,
                "turns": turns,
                "examples_passed": float(last is None),
                "compiled": sum(attempt.compiles for attempt in candidates) / len(candidates),
            },
        )


async def _failed_example(runner: Runner, attempt: ProgramAttempt) -> Feedback | None:
    """Return feedback on the first example that the program fails; None if it passes all examples."""
    if attempt.program is None:
        return Feedback(None, None, None)
    examples = runner.problem.examples
    for test, verdict in zip(examples, await runner.verdicts(attempt.program, examples), strict=True):
        if not verdict.passed:
            return Feedback(attempt.program, WrittenCase.of(test), verdict, example=True)
    return None
