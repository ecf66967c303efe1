"""Compares the training metrics of two checkouts in three steps with the same seed on the same machine.

    git worktree add ../before HEAD~1
    python benchmarks/same_metrics.py --before ../before

Each checkout writes its own boards and warmed-up model. With its own commands and settings, it trains the demo's team
and two arms of the evidence (at_grpo with a policy per role, agent_grpo over sessions). The engine draws its random
numbers from the names of requests, which are the same in every run, so both checkouts sample the same tokens. The
remaining difference is float rounding: verl orders rows by random names, and a sum in another order is rounded
differently.
Times, metrics that depend on times (such as concurrent requests), throughput, memory and the size of session records
are not compared. The exit code is 1 if any other metric differs by more than rounding.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import math
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
STEPS = 3
ROUNDING = 1e-4
# The size of compressed session records depends on the order in which sessions end.
NOT_COMPARED = re.compile(r"timing|perf/|throughput|memory|mfu|seconds|loop_lag|/requests$|record_mib")
ARMS = ("at_grpo_per_role", "agent_grpo")
BOARDS = (
    *("plan_path", "--size", "size=4", "--practice", "min_distance=5", "--train-rows", "256", "--test-rows", "16"),
    *("--noise", "0.65", "--args", "moves=1", "--warm-up", "steps=100", "lessons=20000"),
)
REPEATABLE = (
    "actor_rollout_ref.rollout.full_determinism=true",
    "data.seed=0",
    f"trainer.total_training_steps={STEPS}",
    f"trainer.test_freq={STEPS}",
    "trainer.save_freq=-1",
    "trainer.resume_mode=disable",
)
# This code runs in each checkout and reads the arms there, because their settings may have other names.
MATRIX = f"""
import json
from benchmarks.evidence import matrix
arms = [matrix.ARMS[name] for name in {ARMS}]
print(json.dumps({{arm.name: [arm.workflow, *arm.trial.settings, *arm.overrides] for arm in arms}}))
"""

Metrics = dict[int, dict[str, float]]


@dataclass(frozen=True)
class Checkout:
    """A checkout of the project, which runs with the current Python. `through` is a prefix of every command."""

    root: Path
    folder: Path
    through: Sequence[str]

    def commands(self) -> dict[str, list[str]]:
        """Return the overrides of every run."""
        arms: dict[str, list[str]] = json.loads(self._python("-c", MATRIX))
        recipe = next(setting for setting in arms[ARMS[0]] if "plan_path" in setting)
        small = ["data.train_batch_size=8", "actor_rollout_ref.actor.ppo_mini_batch_size=8"]
        runs = {"demo": ["+mas=planner_executor", recipe, *small]}
        return runs | {name: [f"+mas={workflow}", *settings] for name, (workflow, *settings) in arms.items()}

    def start(self) -> str:
        """Write boards and model to `start`, and return a hash of the boards."""
        main = "import sys; from verl_mas.cli import main; sys.exit(main())"
        self._python("-c", main, "data", "puzzle", BOARDS[0], "--out", f"{self.folder}/start", *BOARDS[1:])
        files = (self.folder / "start" / name for name in ("train.parquet", "test.parquet"))
        return hashlib.sha256(b"".join(file.read_bytes() for file in files)).hexdigest()

    def train(self, name: str, overrides: Sequence[str]) -> Metrics:
        start, run = self.folder / "start", self.folder / name
        metrics = run / "metrics.jsonl"
        run.mkdir()
        self._python(
            *("-m", "verl.trainer.main_ppo", "+platform=cpu", *overrides, *REPEATABLE),
            *(f"data.train_files={start}/train.parquet", f"data.val_files={start}/test.parquet"),
            *(f"actor_rollout_ref.model.path={start}/model", f"trainer.default_local_dir={run}/checkpoints"),
            f"hydra.run.dir={run}/hydra",
            VERL_FILE_LOGGER_PATH=str(metrics),
        )
        records = map(json.loads, metrics.read_text().splitlines())
        return {record["step"]: record["data"] for record in records}

    def _python(self, *arguments: str, **environment: str) -> str:
        environment = {"PYTHONPATH": str(self.root), "OMP_NUM_THREADS": "1", **environment}
        command = [*self.through, sys.executable, *arguments]
        log = self.folder / "log.txt"
        with log.open("a") as errors:
            done = subprocess.run(
                command, cwd=self.folder, env=os.environ | environment, stdout=subprocess.PIPE, stderr=errors, text=True
            )
            errors.write(done.stdout)
        if done.returncode:
            raise SystemExit(f"{self.root}: exit code {done.returncode}; see {log}")
        return done.stdout


def differences(before: Metrics, after: Metrics) -> list[str]:
    """Return the differences beyond rounding, one line each."""
    found = [f"steps {sorted(before)} and {sorted(after)}"] if before.keys() != after.keys() else []
    for step in sorted(before.keys() & after.keys()):
        old, new = compared(before[step]), compared(after[step])
        found += [f"step {step}: {key} only before" for key in sorted(old.keys() - new.keys())]
        found += [f"step {step}: {key} only after" for key in sorted(new.keys() - old.keys())]
        for key in sorted(old.keys() & new.keys()):
            if distance(old[key], new[key]) > ROUNDING:
                found.append(f"step {step}: {key} {old[key]} and {new[key]}")
    return found


def compared(values: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in values.items() if not NOT_COMPARED.search(key)}


def distance(old: float, new: float) -> float:
    """Return the relative difference of large values and the absolute difference of values below 1. NaN equals NaN."""
    if old == new or (math.isnan(old) and math.isnan(new)):
        return 0.0
    gap = abs(old - new) / max(1.0, abs(old), abs(new))
    return math.inf if math.isnan(gap) else gap


def report(name: str, before: Metrics, after: Metrics) -> bool:
    found = differences(before, after)
    pairs = [
        (value, compared(after[step])[key])
        for step in before.keys() & after.keys()
        for key, value in compared(before[step]).items()
        if key in after[step]
    ]
    largest = max((distance(old, new) for old, new in pairs), default=0.0)
    same = sum(old == new for old, new in pairs)
    verdict = "DIFFERS" if found else "the same"
    print(f"{name}: {verdict}; {len(pairs)} values, {same} of them exactly equal, largest distance {largest:.1e}")
    print("".join(f"  {line}\n" for line in found), end="", flush=True)
    return not found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--before", type=Path, required=True, help="a checkout")
    parser.add_argument("--after", type=Path, default=ROOT, help="another; default: this one")
    parser.add_argument("--through", default="", help="prefix of every command, such as 'nice -n 10'")
    parser.add_argument("--keep", type=Path, help="an empty folder for logs and metrics; default: a temporary one")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder = (options.keep or Path(temporary)).resolve()
        sides = []
        for side, root in (("before", options.before), ("after", options.after)):
            (folder / side).mkdir(parents=True)
            sides.append(Checkout(root.resolve(), folder / side, options.through.split()))
        before, after = sides
        alike = [before.start() == after.start()]
        print(f"boards: {'the same' if alike[0] else 'DIFFER'}", flush=True)
        runs = after.commands()
        for name, overrides in before.commands().items():
            alike.append(report(name, before.train(name, overrides), after.train(name, runs[name])))
    return 0 if all(alike) else 1


if __name__ == "__main__":
    sys.exit(main())
