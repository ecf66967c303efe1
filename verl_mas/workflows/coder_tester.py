"""A coder writes a program and a tester writes a test, until they agree (the code team of AT-GRPO)."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from verl_mas.environment.coding.prompts import Feedback, WrittenCase
from verl_mas.environment.coding.team import CodeTeam, ProgramAttempt, Runner, Written, give_team_parts
from verl_mas.environment.execution.executor import Status
from verl_mas.environment.execution.problem import Test, Verdict
from verl_mas.errors import ConfigError, DataError
from verl_mas.workflow import Malformed, Outcome, Reply, Task, Team, register_workflow

VALID, RIGHT = 0.2, 0.8
# Reward of an unreadable test. It is lower than the reward of every readable test, which is at least -1.
CURE_MALFORMED = -1.2


@dataclass(frozen=True)
class CaseScore:
    """Score of one candidate of the tester. A field is None if its value is not known. If `trained` is False, the
    quality of the candidate is not known, so the candidate is not trained on."""

    reward: float | None
    right: bool | None
    trained: bool = True


async def at_grpo(runner: Runner, tests: Sequence[Test | None], attempts: Sequence[ProgramAttempt]) -> list[CaseScore]:
    """Score tests: 0.2 if the golden program ends normally on the test's input, plus 0.8 if the test expects the output
    of the golden program."""
    golden = runner.problem.golden
    if golden is None:
        return [CaseScore(None, None)] * len(tests)
    verdicts = iter(await runner.verdicts(golden, [test for test in tests if test is not None]))
    scores = []
    for test in tests:
        verdict = next(verdicts) if test is not None else None
        valid, right = (verdict.status is Status.OK, verdict.passed) if verdict else (False, False)
        scores.append(CaseScore(VALID * valid + RIGHT * right, right))
    return scores


async def cure(runner: Runner, tests: Sequence[Test | None], attempts: Sequence[ProgramAttempt]) -> list[CaseScore]:
    """Score tests by the coder's candidates. A right test is a test that every right program passes. Its score is the
    share of wrong programs that fail it. The score of a wrong test is minus the share of wrong programs that pass it.
    No golden program is needed, but the candidates must include a right program."""
    right = [attempt.program for attempt in attempts if attempt.right]
    wrong = [attempt.program for attempt in attempts if not attempt.right]
    if not right:
        return [CaseScore(CURE_MALFORMED if test is None else 0.0, None, trained=False) for test in tests]
    readable = {number: test for number, test in enumerate(tests) if test is not None}
    programs = list(dict.fromkeys(attempt.program or "" for attempt in attempts if attempt.compiles))
    verdicts = await asyncio.gather(*(runner.verdicts(program, list(readable.values())) for program in programs))
    passed = {
        (program, number)
        for program, of_program in zip(programs, verdicts, strict=True)
        for number, verdict in zip(readable, of_program, strict=True)
        if verdict.passed
    }
    scores = []
    for number, test in enumerate(tests):
        if test is None:
            scores.append(CaseScore(CURE_MALFORMED, False))
            continue
        is_right = all((program, number) in passed for program in right)
        # Count the wrong programs that fail a right test, or that pass a wrong test.
        counted = [((program, number) in passed) is not is_right for program in wrong]
        share = sum(counted) / len(wrong) if wrong else 1.0
        scores.append(CaseScore(share if is_right else -share, is_right))
    return scores


# Functions that score the tests of a turn against the coder's candidates. An unreadable test is None.
CASE_REWARDS = {"at_grpo": at_grpo, "cure": cure}


@dataclass(frozen=True)
class WrittenTest:
    """A test that the tester wrote, in its written form (`case`) and in its executable form (`test`)."""

    case: WrittenCase
    test: Test


@dataclass(frozen=True)
class Turn:
    """One turn: the candidates of both agents, and how the committed program ended on the committed test."""

    written: Written
    scores: Sequence[CaseScore]  # scores of all tests
    score: CaseScore  # score of the committed test
    probe: WrittenTest | None  # None: the committed test was unreadable
    verdict: Verdict | None  # None: the committed test or the program was unreadable

    @property
    def program(self) -> ProgramAttempt:
        return self.written.committed

    @property
    def agreed(self) -> bool:
        return self.verdict is not None and self.verdict.passed

    @property
    def feedback(self) -> Feedback:
        return Feedback(self.program.program, self.probe.case if self.probe else None, self.verdict)


@register_workflow("coder_tester")
class CoderTester(CodeTeam):
    """Coder and tester take up to `max_turns` turns. The coder reads the last test and the output of its own
    program for this test. The tester reads this output too, but never the program. The session ends early when the
    committed program prints the output that the committed test expects.

    The last program is the team's answer.
    """

    agents = ("coder", "tester")
    tester_reward: Literal["at_grpo", "cure"] = "at_grpo"
    """at_grpo: 0.2 for a valid test and 0.8 more for a right test, judged by the golden program. cure: a score that
    depends on which of the coder's candidates pass the test."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.sparse and self.tester_reward != "at_grpo":
            value = f"mas.workflow.args.tester_reward={self.tester_reward} with mas.workflow.args.reward=sparse"
            fix = "set mas.workflow.args.reward=dense, or leave tester_reward out"
            raise ConfigError(value, rule="reward=sparse pays no single test", fix=fix)

    async def run(self, task: Task, team: Team) -> Outcome:
        runner = Runner.of(task.ground_truth, self.execution)
        agreement_paid = not self.sparse and self.tester_reward == "at_grpo" and not task.validate
        if agreement_paid and runner.problem.golden is None:
            rule = "tester_reward=at_grpo pays for tests that agree with it"
            fix = "remove such rows (`verl-mas data code` drops them), or set ++mas.workflow.args.tester_reward=cure"
            raise DataError("a code task without a golden program", rule=rule, fix=fix)
        turns: list[Turn] = []
        while len(turns) < self.max_turns and not (turns and turns[-1].agreed):
            turns.append(await self.turn(task, team, runner, turns[-1].feedback if turns else None))
        final = turns[-1].program
        return Outcome(
            answer=final.program,
            reward=self.value(final),
            info={"acc": float(final.right), "share": final.share, **_measured(turns)},
            # A test approves or rejects the program of its turn.
            verdicts={
                "tester": [
                    (turn.agreed if turn.probe else None, turn.program.right)
                    for turn in turns
                    if turn.program.program is not None
                ]
            },
        )

    async def turn(self, task: Task, team: Team, runner: Runner, last: Feedback | None) -> Turn:
        """Play one turn. Neither agent reads what the other one writes in the same turn, so both act at the same
        time."""
        problem = runner.problem
        programs, replies = await asyncio.gather(
            team.coder.branch(self.prompts.solve(task, problem, last)),
            team.tester.branch(self.prompts.probe(task, problem, last)),
        )
        written = await self.committed(team, runner, programs)
        probes = [self.read(reply, runner) for reply in replies]
        scores = await self.score(replies, probes, written, runner)
        number = replies.index(team.commit(replies))
        probe, verdict = probes[number], None
        if probe and written.committed.program is not None:
            [verdict] = await runner.verdicts(written.committed.program, [probe.test])
        return Turn(written, scores, scores[number], probe, verdict)

    def read(self, reply: Reply, runner: Runner) -> WrittenTest | None:
        case = reply.parse(self.prompts.case)
        if isinstance(case, Malformed):
            return None
        test = case.test(runner.problem)
        if isinstance(test, Malformed):
            reply.mark_malformed(test.reason)
            return None
        return WrittenTest(case, test)

    async def score(
        self, replies: Sequence[Reply], probes: Sequence[WrittenTest | None], written: Written, runner: Runner
    ) -> Sequence[CaseScore]:
        """Reward the tester's candidates. The team's part of their rewards is the reward of the committed program, so
        it is equal for all candidates."""
        give_team_parts(replies, [self.value(written.committed)] * len(replies))
        if self.sparse:
            for reply in replies:
                reply.reward = 0.0
            return [CaseScore(0.0, None)] * len(replies)
        tests = [probe.test if probe else None for probe in probes]
        scores = await CASE_REWARDS[self.tester_reward](runner, tests, written.candidates)
        for reply, score in zip(replies, scores, strict=True):
            reply.reward = score.reward
            reply.trainable = reply.trainable and score.trained
        return scores


def _measured(turns: Sequence[Turn]) -> dict[str, float]:
    programs = [attempt for turn in turns for attempt in turn.written.candidates]
    known = [score.right for turn in turns for score in turn.scores if score.right is not None]
    # For each turn with a wrong committed program: whether this program failed a right test.
    caught = [
        turn.score.right and not turn.agreed
        for turn in turns
        if not turn.program.right and turn.score.right is not None
    ]
    return {
        "agreed": float(turns[-1].agreed),
        "turns": len(turns),
        "compiled": sum(attempt.compiles for attempt in programs) / len(programs),
        **({"tests_right": sum(known) / len(known)} if known else {}),
        **({"wrong_programs_caught": sum(caught) / len(caught)} if caught else {}),
    }
