"""Programs and outputs that are too long to be written, by the kind to which they belong."""

from collections.abc import Collection

from hostile_programs.case import Case
from verl_mas.environment.execution.executor import Limits, Status

OK, SYNTAX_ERROR, ERROR, FLOOD = Status.OK, Status.SYNTAX_ERROR, Status.ERROR, Status.TOO_MUCH_OUTPUT
REFUSED = (SYNTAX_ERROR, ERROR, Status.OUT_OF_MEMORY, Status.TIMED_OUT, Status.KILLED)
DEFAULT, SHORT, LARGE = Limits(), Limits(cpu_s=0.2, wall_s=0.6), Limits(cpu_s=1.0, wall_s=3.0, memory_mb=512)
MB = 1 << 20


def case(name: str, program: str, ends: Collection[Status] = REFUSED, limits: Limits = DEFAULT) -> Case:
    return Case(name, program, frozenset(ends), limits=limits)


# Programs whose text is the attack, on the compiler and on whoever reads it.
COMPILER = [
    case("90,000 brackets", "(" * 90_000 + ")" * 90_000),
    case("200,000 signs", "-" * 200_000 + "1"),
    case("200,000 attributes", "a" + ".a" * 200_000),
    case("120 blocks", "\n".join(" " * depth + "if 1:" for depth in range(120)) + "\n" + " " * 120 + "pass"),
    case("constants that the compiler computes", "x = ((1 << 4000) * (1 << 4000)) ** 4000 ** 2", limits=SHORT),
    case("constants that the compiler repeats", "x = " + "(" * 30 + "'a' * 4000" + " * 4000)" * 30),
    case("NUL bytes in a program", "print(1)\0print(2)", [SYNTAX_ERROR]),
    case("only NUL bytes", "\0" * MB, [SYNTAX_ERROR]),
    case("half of a surrogate pair", "print('\ud800')", [SYNTAX_ERROR, ERROR]),
    case("an unknown encoding", "# -*- coding: nonsense -*-\nprint(1)", [SYNTAX_ERROR, OK]),
    case("1 MB on one line", "x = " + "1+" * (MB // 2) + "1", [*REFUSED, OK], LARGE),
    Case("10 MB of text", "x = '" + "a" * (10 * MB) + "'\nprint(len(x))", prints="10485760\n", limits=LARGE),
    case("10 MB of code", "x = 1\n" * (10 * MB // 6), [*REFUSED, OK], LARGE),
    case("10 MB of brackets", "(" * (10 * MB), limits=LARGE),
    case("10 MB of newlines", "\n" * (10 * MB) + "print(1)", [*REFUSED, OK], LARGE),
    case("a million f-strings", "f'" + "{1}" * 300_000 + "'", [*REFUSED, OK], LARGE),
    case("an error message of 1 MB", "raise ValueError('x' * 1_000_000)", [ERROR, FLOOD]),
    case("a warning per line", "\n".join(f"{n} is {n}" for n in range(1000, 4000)), [OK, FLOOD, ERROR, SYNTAX_ERROR]),
]
OUTPUT = [
    Case("a hole within the limit", "import os\nos.pwrite(1, b'x', 60_000)", prints="\0" * 60_000 + "x"),
    Case("binary", "import os; os.write(1, bytes(range(128)))", prints=bytes(range(128)).decode()),
    Case("output just at the limit", "print('x' * 1023)", prints="x" * 1023 + "\n", limits=Limits(output_bytes=1024)),
]
HONEST = [
    Case(
        "a large input",
        "import sys\nprint(sum(map(int, sys.stdin.read().split())))",
        prints="499999500000\n",
        stdin=" ".join(map(str, range(10**6))),
    )
]
