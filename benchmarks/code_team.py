"""Train the team of `code/laptop`, and its coder alone with an equal number of acts per step, for several seeds.

python -m benchmarks.code_team             # runs that are in the results are skipped; repeat to continue
python -m benchmarks.code_team --seeds     # only the table and the figure of recipes/code/README.md
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from benchmarks.evidence.intervals import mean
from benchmarks.evidence.page import between
from verl_mas.run_folder.metrics import names as metric_names
from verl_mas.run_folder.metrics.file import Step, read_steps, series

ROOT = Path(__file__).parents[1]
RESULTS = Path(__file__).with_suffix(".json")
PAGE = ROOT / "recipes" / "code" / "README.md"
FIGURE = PAGE.with_name("laptop.png")
RUNS = ROOT / "runs" / "code_team"
DATA = ("--noise", "0.55")
# A turn of the single coder has one act and a turn of the team has two, so the single coder gets twice the tasks.
ARMS: Mapping[str, tuple[str, ...]] = {
    "coder_tester": (),
    "single_coder": (
        "mas.workflow.name=single_coder",
        "~mas.agents.tester",
        "data.train_batch_size=40",
        "actor_rollout_ref.actor.ppo_mini_batch_size=10",
    ),
}
RIGHT = "val-core/programs/acc/mean@1"
TESTS_RIGHT = "val-aux/programs/tests_right/mean@1"


def main() -> int:
    parser = argparse.ArgumentParser(
        "python -m benchmarks.code_team", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seeds", type=int, nargs="*", default=[0, 1, 2])
    parser.add_argument("--arms", nargs="*", choices=list(ARMS), default=list(ARMS))
    options = parser.parse_args()
    found: dict[str, Any] = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    for seed in options.seeds:
        for arm in options.arms:
            if f"{arm}-{seed}" not in found:
                found[f"{arm}-{seed}"] = _train(arm, seed)
                RESULTS.write_text(json.dumps(found, indent=1, sort_keys=True) + "\n")
    _draw(found)
    results = f"{_table(found)}\n\n![held-out tasks solved by step]({FIGURE.name})"
    PAGE.write_text(between(PAGE.read_text(), "laptop", results))
    return 0


def _train(arm: str, seed: int) -> dict[str, Any]:
    start, folder = _start(seed), RUNS / f"{arm}-{seed}"
    folder.mkdir(parents=True, exist_ok=True)
    metrics = folder / "metrics.jsonl"
    metrics.unlink(missing_ok=True)
    began = time.time()
    _call(
        folder,
        *("verl.trainer.main_ppo", "+platform=cpu", "+recipe=code/laptop", *ARMS[arm]),
        *(f"data.train_files={start}/train.parquet", f"data.val_files={start}/test.parquet", f"data.seed={seed}"),
        *(f"actor_rollout_ref.model.path={start}/model", f"trainer.default_local_dir={folder}/checkpoints"),
        *("trainer.resume_mode=disable", "trainer.save_freq=-1", "mas.trajectories.enabled=false"),
        VERL_FILE_LOGGER_PATH=str(metrics),
    )
    steps = read_steps(metrics)
    return {
        "seconds": round(time.time() - began),
        "right": _by_step(steps, RIGHT),
        "tests_right": _by_step(steps, TESTS_RIGHT),
        "replies": sum(_replies(step) for step in steps),
        "tokens": round(sum(_tokens(step) for step in steps)),
    }


def _start(seed: int) -> Path:
    """Make the tasks and the warmed-up model, which both arms share."""
    folder = RUNS / f"start-{seed}"
    done = folder / "done"
    if not done.exists():
        folder.mkdir(parents=True, exist_ok=True)
        _call(folder, "verl_mas", "data", "programs", "--out", str(folder), "--seed", str(seed), *DATA)
        done.touch()
    return folder


def _call(folder: Path, *module: str, **environment: str) -> None:
    with (folder / "log.txt").open("w") as output:
        subprocess.run(
            [sys.executable, "-m", *module],
            check=True,
            cwd=ROOT,
            env=os.environ | {"OMP_NUM_THREADS": "1"} | environment,
            stdout=output,
            stderr=subprocess.STDOUT,
        )


def _by_step(steps: list[Step], key: str) -> dict[str, float]:
    places, values = series(steps, key)
    return dict(zip(map(str, places), (round(value, 4) for value in values), strict=True))


def _of_agents(step: Step, name: str) -> dict[str, float]:
    """Return a training metric of each agent. Agents without this metric are skipped."""
    found = {agent: step.values.get(metric_names.agent(agent, name)) for agent in ("coder", "tester")}
    return {agent: value for agent, value in found.items() if value is not None}


def _replies(step: Step) -> int:
    return int(sum(_of_agents(step, "acts").values()))


def _tokens(step: Step) -> float:
    lengths = _of_agents(step, "length/response")
    return sum(acts * lengths[agent] for agent, acts in _of_agents(step, "acts").items())


def _table(found: Mapping[str, Any]) -> str:
    lines = [
        "| team | seed | right at the start | right at the end | gain | right tests | replies | tokens | minutes |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for arm in ARMS:
        gains = []
        for seed, run in _runs(found, arm).items():
            first, last = _ends(run["right"])
            gains.append(last - first)
            tests = " to ".join(f"{value:.3f}" for value in _ends(run["tests_right"])) if run["tests_right"] else "-"
            cost = f"{run['replies']:,} | {run['tokens']:,} | {run['seconds'] / 60:.1f}"
            lines.append(f"| `{arm}` | {seed} | {first:.3f} | {last:.3f} | {gains[-1]:+.3f} | {tests} | {cost} |")
        if gains:
            lines.append(f"| `{arm}` | mean | | | {mean(gains)} | | | | |")
    return "\n".join(lines)


def _runs(found: Mapping[str, Any], arm: str) -> dict[int, Mapping[str, Any]]:
    return {int(key.rpartition("-")[2]): run for key, run in sorted(found.items()) if key.startswith(f"{arm}-")}


def _ends(values: Mapping[str, float]) -> tuple[float, float]:
    """Return the values at the first and the last step."""
    steps = sorted(values, key=int)
    return values[steps[0]], values[steps[-1]]


def _draw(found: Mapping[str, Any]) -> None:
    import matplotlib

    matplotlib.use("agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(6, 3.5))
    for arm, colour in zip(ARMS, ("tab:blue", "tab:orange"), strict=True):
        for number, run in enumerate(_runs(found, arm).values()):
            places = sorted(map(int, run["right"]))
            values = [run["right"][str(place)] for place in places]
            axes.plot(places, values, color=colour, marker=".", label=None if number else arm)
    axes.set(xlabel="step", ylabel="held-out tasks solved", ylim=(0, 1))
    axes.legend()
    figure.tight_layout()
    figure.savefig(FIGURE, dpi=100)


if __name__ == "__main__":
    sys.exit(main())
