"""Check that teams still learn as before: compare new runs of some arms with bands from the stored runs.

    python -m benchmarks.evidence.gate                 # exit code 1 if a number is below its band
    git bisect start HEAD GOOD && git bisect run .venv/bin/python -m benchmarks.evidence.gate clues_shared

Two numbers of a run are compared: its reward over all steps, and its success at the end. Each number is the best of the
arm's new runs, because an unlucky start lowers one run, but a fault lowers all runs. By Student's t for the stored
seeds, a sound run is below the band in 2.5 % of cases. Of 13 sound runs with other seeds, two were below, each in
another arm, so no arm had two such runs. The bands only hold on the kind of machine that made the stored results,
because a warm-up on another processor ends with other weights. On another kind, first run the arms with
`python -m benchmarks.evidence`, and replace the stored results.
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

# By default, each of these arms runs twice. A run takes 2 to 12 minutes on two cores.
GATED = tuple(arm.name for task in TASKS.values() for arm in task.gated)
# This file gets the arms that were below a band in the last call. A bisection has to run only these arms.
MISSED = RUNS / "missed.txt"
# Three stored seeds may agree by chance, so their deviation has a minimum.
LEAST_DEVIATION = 0.02


def numbers(result: Mapping[str, Any]) -> dict[str, float]:
    series = result["series"].items()
    rewards = [value for key, values in series if key.endswith("reward/score") for value in values if value is not None]
    return {"reward over all steps": statistics.fmean(rewards), "success at the end": [*result["success"].values()][-1]}


def lowest(stored: Sequence[float]) -> float:
    """Return the lower end of the band for a number, from its values in the stored runs."""
    deviation = max(LEAST_DEVIATION, statistics.stdev(stored))
    return statistics.fmean(stored) - STUDENT[len(stored) - 2] * deviation * (1 / len(stored) + 1) ** 0.5


def below(arm: str, stored: Sequence[Mapping[str, Any]], new: Sequence[Mapping[str, Any]]) -> list[str]:
    """Print each number of an arm, and return the names of the numbers that are below their bands."""
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
