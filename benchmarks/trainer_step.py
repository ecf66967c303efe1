"""Step times of real CPU runs of verl.trainer.main_ppo on the letters task, as ratios.

    python benchmarks/trainer_step.py

1. A team of one under trainer_mode=mas against verl's stock trainer.
2. Two policies of equal size on one pool against one policy shared by both agents: the same rows and tokens.

A step time is the median over the steps after the warm-up. All runs poll for finished sessions every two seconds, as
verl's trainer does, which hides small differences, so the time without that phase is also printed.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[1]
WARM_UP = 3


def run(folder: Path, letters: Path, steps: int, *overrides: str) -> tuple[float, float]:
    """Median seconds of a step, with and without rollout."""
    folder.mkdir()
    command = [
        *(sys.executable, "-m", "verl.trainer.main_ppo", "+platform=cpu", "+recipe=first_run/laptop"),
        *(f"data.train_files={letters}/train.parquet", f"data.val_files={letters}/test.parquet"),
        f"actor_rollout_ref.model.path={letters}/model",
        *(f"trainer.default_local_dir={folder}/checkpoints", f"hydra.run.dir={folder}/hydra"),
        *("trainer.val_before_train=false", "trainer.test_freq=-1", f"trainer.total_training_steps={steps}"),
        *("data.max_prompt_length=128", "trainer.v1.sampler.sampler_kwargs.poll_interval=2", *overrides),
    ]
    env = os.environ | {"VERL_FILE_LOGGER_PATH": f"{folder}/metrics.jsonl", "OMP_NUM_THREADS": "1"}
    with (folder / "log.txt").open("w") as log:
        subprocess.run(command, cwd=folder, env=env, stdout=log, stderr=subprocess.STDOUT, check=True)
    records = [json.loads(line)["data"] for line in (folder / "metrics.jsonl").read_text().splitlines()][WARM_UP:]
    whole = statistics.median(record["timing_s/step"] for record in records)
    return whole, statistics.median(record["timing_s/step"] - record["timing_s/gen"] for record in records)


def compare(title: str, new: tuple[float, float], old: tuple[float, float]) -> None:
    ratios = ", ".join(f"{n:.2f} s against {o:.2f} s: x {n / o:.2f}" for n, o in zip(new, old, strict=True))
    print(f"{title}: step, and step without rollout: {ratios}")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=13)
    steps = parser.parse_args().steps
    pair = ["+mas=team", "mas.workflow.name=Pair", f"mas.workflow.path={ROOT}/tests/trainer/teams.py"]
    grpo = "algorithm.adv_estimator=agent_grpo"
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        letters = folder / "letters"
        subprocess.run([sys.executable, "-m", "verl_mas.testing.letters", str(letters)], check=True)
        stock = run(folder / "stock", letters, steps)
        single = run(folder / "single", letters, steps, "+mas=single", grpo)
        compare("a team of one against verl's trainer", single, stock)
        shared = run(folder / "shared", letters, steps, *pair, grpo, "mas.agents={writer:{},copier:{}}")
        two = "mas.agents={writer:{policy:a},copier:{policy:b}}"
        separate = run(folder / "separate", letters, steps, *pair, grpo, "mas.policies={a:{},b:{}}", two)
        compare("two policies against one shared", separate, shared)


if __name__ == "__main__":
    main()
