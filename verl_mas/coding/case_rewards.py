"""The rewards of a tester's candidates: of AT-GRPO, against the golden program, and of CURE, against the programs."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass

from verl_mas.coding.attempts import ProgramAttempt, Runner
from verl_mas.execution.limits import Status
from verl_mas.execution.unit_tests import Test

VALID, RIGHT = 0.2, 0.8
# Below every test that can be read: one that every program fails gets 0, and the most harmful one -1.
CURE_MALFORMED = -1.2


@dataclass(frozen=True)
class CaseScore:
    """Of one candidate. None: not known. `trained` False: nothing says how good it is, so its row is left out."""

    reward: float | None
    right: bool | None
    trained: bool = True


# (runner, tests, None where one could not be read, the coder's candidates of the turn) -> a score per test
RewardCases = Callable[[Runner, Sequence[Test | None], Sequence[ProgramAttempt]], Awaitable[list[CaseScore]]]


async def at_grpo(runner: Runner, tests: Sequence[Test | None], attempts: Sequence[ProgramAttempt]) -> list[CaseScore]:
    """0.2 if the golden program ends by itself on the input, 0.8 if the test expects what it prints."""
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
    """A right test, which every right program passes, earns the share of the wrong ones that fail it; a wrong test
    costs the share of them that pass it. Needs no golden program, but a right one among the coder's candidates.
    """
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
        # They fail a right test, or pass a wrong one.
        counted = [((program, number) in passed) is not is_right for program in wrong]
        share = sum(counted) / len(wrong) if wrong else 1.0
        scores.append(CaseScore(share if is_right else -share, is_right))
    return scores


CASE_REWARDS: Mapping[str, RewardCases] = {"at_grpo": at_grpo, "cure": cure}
