"""Run all programs at the same time through the shipped sandbox, and print what is wrong: `python -m hostile_programs`.

--bare: as on a machine that refuses namespaces and landlock, so that only the filter of system calls protects it.
--every N: one of N programs.
"""

import argparse
import asyncio
import os
import sys
import time

from hostile_programs import HONEST, HOSTILE
from hostile_programs.case import Case
from hostile_programs.surroundings import Surroundings
from verl_mas.environment.execution.contained.seccomp import ALLOW, EPERM, Filter, Instruction
from verl_mas.environment.execution.executor import Execution

UNSHARE, MOUNT, PIVOT_ROOT, LANDLOCK = 272, 165, 155, 444
_LOAD, _EQUAL, _RETURN = 0x20, 0x15, 0x06


async def examine(cases: list[Case]) -> list[str]:
    """Run all programs at once and describe what is wrong. The executor bounds how many run at a time."""
    executor = Execution(executor="contained", slots=4).open()
    executor.check()
    with Surroundings() as surroundings:
        try:
            results = await asyncio.gather(
                *(executor.execute(surroundings.text(case), case.stdin, case.limits) for case in cases)
            )
            return [
                *(wrong for case, result in zip(cases, results, strict=True) for wrong in case.wrong(result)),
                *surroundings.harm(),
            ]
        finally:
            await executor.aclose()


def refuse(*calls: int) -> None:
    """Make these system calls fail in this process and its children, as containers do."""
    tests = [Instruction(_EQUAL, len(calls) - at, 0, call) for at, call in enumerate(calls)]
    results = [Instruction(_RETURN, 0, 0, ALLOW), Instruction(_RETURN, 0, 0, EPERM)]
    Filter([Instruction(_LOAD, 0, 0, 0), *tests, *results]).install()


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--bare", action="store_true")
    parser.add_argument("--every", type=int, default=1)
    options = parser.parse_args()
    if options.bare:
        refuse(UNSHARE, MOUNT, PIVOT_ROOT, LANDLOCK)
    started = time.perf_counter()
    cases = [*HOSTILE, *HONEST][:: options.every]
    wrong = asyncio.run(examine(cases))
    seconds = time.perf_counter() - started
    sys.stdout.write("\n".join([*wrong, f"{len(cases)} programs as uid {os.getuid()} in {seconds:.1f} s"]) + "\n")
    return bool(wrong)


if __name__ == "__main__":
    sys.exit(main())
