"""Whether teams still learn as they did: new runs of some arms against the band of the stored ones.

    python -m benchmarks.evidence.gate                 # exit code 1 if a number is below its band
    git bisect start HEAD GOOD && git bisect run .venv/bin/python -m benchmarks.evidence.gate clues_shared

Of each run the reward over all steps, and the success at the end, and of each the best new run: a start without luck
lowers one run, a fault lowers all. By Student's t of the stored seeds a sound run is below the band in 2.5 % of cases.
Of 13 with other seeds two were, one of each arm, so no pair. That holds on their kind of machine, as a warm-up ends
elsewhere on another processor: there, run the arms by `python -m benchmarks.evidence` first, in place of the stored
results.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from benchmarks.evidence.arms import Piece
from benchmarks.evidence.intervals import STUDENT
from benchmarks.evidence.matrix import ARMS, TASKS
from benchmarks.evidence.runs import RESULTS, RUNS, Runner

# Each arm runs twice; a run takes 2 to 12 minutes on two cores.
GATED = tuple(arm.name for task in TASKS.values() for arm in task.gated)
# The arms that the last call missed: what a bisection has to run.
MISSED = RUNS / "missed.txt"
# Three seeds may agree by chance.
LEAST_DEVIATION = 0.02


def numbers(result: Mapping[str, Any]) -> dict[str, float]:
    series = result["series"].items()
    rewards = [value for key, values in series if key.endswith("reward/score") for value in values if value is not None]
    return {"reward over all steps": statistics.fmean(rewards), "success at the end": [*result["success"].values()][-1]}


def lowest(stored: Sequence[float]) -> float:
    """Return the numbers of a new run."""
    deviation = max(LEAST_DEVIATION, statistics.stdev(stored))
    return statistics.fmean(stored) - STUDENT[len(stored) - 2] * deviation * (1 / len(stored) + 1) ** 0.5


def below(arm: str, stored: Sequence[Mapping[str, Any]], new: Sequence[Mapping[str, Any]]) -> list[str]:
    """Print each number and return those below their bands."""
    measured, known, wrong = list(map(numbers, new)), list(map(numbers, stored)), []
    for name in known[0]:
        value, bound = max(one[name] for one in measured), lowest([one[name] for one in known])
        print(f"{arm}: {name} {value:.3f}, at least {bound:.3f}{' IS MISSED' if value < bound else ''}", flush=True)
        wrong += [name] if value < bound else []
    return wrong


def main(argv: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(
        "python -m benchmarks.evidence.gate", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("arms", nargs="*", default=GATED, metavar="ARM", help=f"default: {', '.join(GATED)}")
    parser.add_argument("--seeds", type=int, default=2, help="new runs of each arm")
    options, runner, missed = parser.parse_args(argv), Runner(), []
    for arm in options.arms:
        stored = [json.loads(file.read_text()) for file in sorted(RESULTS.glob(f"{arm}-*.json"))]
        new = [runner.measured(Piece(ARMS[arm], seed)) for seed in range(options.seeds)]
        missed += [arm] if below(arm, stored, new) else []
    MISSED.write_text(" ".join(missed))
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
