"""Print what `verl-mas check` says of every wrong command line: `python -m wrong_configs [class ...] [--all]`.

Without `--all`, only the cases are listed that are not refused, or not clearly.
"""

from __future__ import annotations

import sys
import tempfile
from collections import Counter
from pathlib import Path

from verl_mas.testing import letters
from wrong_configs import CLASSES, cases
from wrong_configs.case import Verdict, look

EXPECTED = (Verdict.REFUSED, Verdict.WARNED)


def main(arguments: list[str]) -> int:
    chosen = [name for name in arguments if not name.startswith("-")] or list(CLASSES)
    table: dict[str, Counter[Verdict]] = {}
    with tempfile.TemporaryDirectory() as scratch:
        task = Path(scratch) / "task"
        letters.prepare(task)
        for name in chosen:
            table[name] = Counter()
            for number, case in enumerate(cases(name)):
                seen = look(case, task, Path(scratch) / name / str(number))
                table[name][seen.verdict] += 1
                if seen.verdict not in EXPECTED or "--all" in arguments:
                    sys.stdout.write(f"{name}: {case.name}\n    {seen.verdict.value}: {seen.message[:400]}\n")
    columns = list(Verdict)
    sys.stdout.write("| class | cases | " + " | ".join(verdict.value for verdict in columns) + " |\n")
    for name, counts in [*table.items(), ("sum", sum(table.values(), Counter()))]:
        row = [counts.total(), *(counts[verdict] for verdict in columns)]
        sys.stdout.write(f"| {name} | {' | '.join(map(str, row))} |\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
