"""Measure how long `verl-mas check` takes for a valid configuration, and which imports take the time.

    python benchmarks/check_time.py [--runs 5] [arguments of the check ...]

The baseline is `import verl.trainer.main_ppo`, which every run begins with. The ratio is the ratio of the medians. CPU
time is printed as well as elapsed time, because other programs on the machine change it less.
"""

from __future__ import annotations

import argparse
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path

BASELINE = [sys.executable, "-c", "import verl.trainer.main_ppo"]
SHOWN = 8


def seconds(command: Sequence[str]) -> tuple[float, float]:
    """Return the elapsed seconds and the CPU seconds of a command."""
    before, start = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    subprocess.run(command, check=True, capture_output=True)
    passed, after = time.perf_counter() - start, resource.getrusage(resource.RUSAGE_CHILDREN)
    return passed, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def imports(command: Sequence[str]) -> dict[str, float]:
    """Return the import seconds of each package, slowest first. A package's seconds exclude its dependencies."""
    python, *rest = command
    trace = subprocess.run([python, "-X", "importtime", *rest], check=True, capture_output=True, text=True).stderr
    found: dict[str, float] = defaultdict(float)
    for line in trace.splitlines():
        if line.startswith("import time:") and "self" not in line:
            own, _, module = line.removeprefix("import time:").split("|")
            found[module.strip().split(".")[0]] += int(own) / 1e6
    return dict(sorted(found.items(), key=lambda item: -item[1]))


def good(letters: Path) -> list[str]:
    return [
        *("+platform=cpu", "+mas=solver_verifier", "algorithm.adv_estimator=agent_grpo", "data.train_batch_size=8"),
        *("actor_rollout_ref.rollout.n=4", "actor_rollout_ref.actor.ppo_mini_batch_size=8"),
        f"actor_rollout_ref.model.path={letters}/model",
        *(f"data.train_files={letters}/train.parquet", f"data.val_files={letters}/test.parquet"),
        "+mas.workflow.args.score=math",
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=5)
    options, arguments = parser.parse_known_args()
    os.environ["OMP_NUM_THREADS"] = "1"
    with tempfile.TemporaryDirectory() as name:
        letters = Path(name) / "letters"
        made = [sys.executable, "-m", "verl_mas.testing.letters", str(letters)]
        subprocess.run(made, check=True, capture_output=True)
        check = [sys.executable, "-m", "verl_mas", "check", *(arguments or good(letters))]
        seconds(check), seconds(BASELINE)
        pairs = [(seconds(check), seconds(BASELINE)) for _ in range(options.runs)]
        by_package = imports(check)
    ours, theirs = (
        [statistics.median(values) for values in zip(*times, strict=True)] for times in zip(*pairs, strict=True)
    )
    for what, (passed, used) in (("verl-mas check", ours), ("import verl.trainer.main_ppo", theirs)):
        print(f"{what}: {passed:.2f} s, of which processor {used:.2f} s")
    print(f"ratio {ours[0] / theirs[0]:.2f}, of processor time {ours[1] / theirs[1]:.2f}")
    print(f"imports: {sum(by_package.values()):.2f} s, measured with -X importtime, which slows them down")
    for package, took in list(by_package.items())[:SHOWN]:
        print(f"  {package}: {took:.2f} s")


if __name__ == "__main__":
    main()
