"""Compare the step times of CPU runs of verl.trainer.main_ppo, and the final weights of runs that should be equal.

    python benchmarks/trainer_step.py [single] [policies]
    python benchmarks/trainer_step.py passes --data runs/smollm2

single    a team of one agent under trainer_mode=mas, by default and with all passes that verl makes, compared with
          verl's stock trainer on the letters task. All runs have the same rows and come one after the other
policies  two policies of equal size on one pool, compared with one policy of both agents on as many rows and tokens
passes    smollm2/laptop with old log-probs of the trainer, by default and with all passes that verl makes.
          --data: the folder that `verl-mas data smollm2` has made. The two ways run in turn, each twice (A B B A), and
          sample the same tokens, so "same rollout" counts the median rollout of all runs for both

Every number is a median over the steps after the warm-up, in seconds and in CPU seconds of all processes of a run.
Other programs on the machine change CPU seconds less. The runs of the letters task poll for finished sessions every two
seconds, as verl's trainer does. This hides small differences, so the step without that phase (rest) is printed as well.
"""

from __future__ import annotations

import argparse
import json
import os
import pickle
import statistics
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

import torch
from cpu_seconds import PREFIX as CPU
from safetensors.torch import load_file

ROOT = Path(__file__).parents[1]
TESTS = ROOT / "tests/trainer"
WARM_UP = 2  # first steps, which always compute old log-probs, so they are not measured
PHASES = ("gen", "old_log_prob", "adv", "update_actor", "update_weights")
ALL_PASSES = ("mas.old_log_probs_every=1", "mas.skip_zero_advantage=false")


@dataclass(frozen=True)
class Run:
    folder: Path
    steps: int
    timings: list[dict[str, float]]  # seconds of each step's phases, CPU seconds as cpu/...; `rest`: no rollout

    def seconds(self, name: str) -> float:
        """Return the median over the steps of the seconds of a phase."""
        return statistics.median(timing[name] for timing in self.timings)

    def joined(self, other: Run) -> Run:
        """Join the steps of two runs, for medians over all of them."""
        return Run(self.folder, self.steps, [*self.timings, *other.timings])

    def rows(self) -> dict[str, list[object]]:
        """Return the tokens and scores of each step's rows, by step and row key."""
        files = {path.stem: pickle.loads(path.read_bytes()) for path in self.folder.glob("rows/*.pickle")}
        return {f"{step} {key}": row for step, rows in files.items() for key, row in rows.items()}

    def weights(self) -> dict[str, torch.Tensor]:
        """Read the weights in the last checkpoint: whole models and adapters."""
        checkpoint = self.folder / f"checkpoints/global_step_{self.steps}"
        whole = [torch.load(path, weights_only=False) for path in sorted(checkpoint.glob("*/model_world_size_1_*.pt"))]
        adapters = [load_file(path) for path in sorted(checkpoint.glob("*/adapter_model.safetensors"))]
        return {
            f"{i} {name}": getattr(value, "to_local", lambda value=value: value)()
            for i, state in enumerate([*whole, *adapters])
            for name, value in state.items()
        }


def run(folder: Path, steps: int, *overrides: str, poll: float = 2.0) -> Run:
    (folder / "rows").mkdir(parents=True)
    command = [
        *(sys.executable, "-m", "verl.trainer.main_ppo", "+platform=cpu"),
        *(f"trainer.default_local_dir={folder}/checkpoints", f"hydra.run.dir={folder}/hydra"),
        *("trainer.val_before_train=false", "trainer.test_freq=-1", f"trainer.total_training_steps={steps}"),
        *(f"trainer.save_freq={steps}", f"+ray_kwargs.ray_init.runtime_env.env_vars.ROWS_DIR={folder}/rows"),
        *(f"+ray_kwargs.ray_init.runtime_env.env_vars.ROWS_POLL='{poll}'", *overrides),
    ]
    names = {"VERL_USE_EXTERNAL_MODULES": "same_rows,cpu_seconds", "ROWS_DIR": f"{folder}/rows", "ROWS_POLL": f"{poll}"}
    names |= {"PYTHONPATH": f"{TESTS}{os.pathsep}{ROOT}/benchmarks", "OMP_NUM_THREADS": "1"}
    # With Ray's default niceness of 15 for its workers, every other program on the machine would have priority.
    names |= {"VERL_FILE_LOGGER_PATH": f"{folder}/metrics.jsonl", "RAY_worker_niceness": "0"}
    with (folder / "log.txt").open("w") as log:
        subprocess.run(command, cwd=folder, env=os.environ | names, stdout=log, stderr=subprocess.STDOUT, check=True)
    lines = (folder / "metrics.jsonl").read_text().splitlines()
    return Run(folder, steps, [timing(json.loads(line)["data"]) for line in lines][WARM_UP:])


def timing(record: dict[str, float]) -> dict[str, float]:
    kinds = ("", CPU)
    of = {kind + name: record.get(f"timing_s/{kind}{name}", 0.0) for kind in kinds for name in ("step", *PHASES)}
    return {**of, **{f"{kind}rest": of[f"{kind}step"] - of[f"{kind}gen"] for kind in kinds}}


def compare(title: str, new: Run, old: Run) -> None:
    print(f"{title} (load of the machine: {os.getloadavg()[0]:.1f})")
    for name in ("step", "rest", *PHASES):
        (seconds, cpu), (before, cpu_before) = [(run.seconds(name), run.seconds(CPU + name)) for run in (new, old)]
        ratios = f": x {seconds / before:.2f} and x {cpu / cpu_before:.2f}" if name in ("step", "rest") else ""
        print(f"  {name}: {seconds:.2f} s, {cpu:.2f} CPU s against {before:.2f} s, {cpu_before:.2f} CPU s{ratios}")


def compare_same_rollout(new: Run, old: Run) -> None:
    """Compare two runs with the same rollout seconds for both, and print how many of their rows are the same."""
    ours, theirs = new.rows(), old.rows()
    same = sum(row == theirs.get(key) for key, row in ours.items())
    ratios = []
    for kind in ("", CPU):
        rollout = new.joined(old).seconds(f"{kind}gen")
        ratios.append((rollout + new.seconds(f"{kind}rest")) / (rollout + old.seconds(f"{kind}rest")))
    print(f"  same rollout: x {ratios[0]:.2f} and x {ratios[1]:.2f}; {same} of {len(ours)} rows are the same")


def compare_weights(new: Run, old: Run) -> None:
    ours, theirs = new.weights(), old.weights()
    assert ours.keys() == theirs.keys() and ours
    apart = max(float((ours[name] - theirs[name]).abs().max()) for name in ours)
    names = f"{new.folder.name} and {old.folder.name}"
    print(f"  largest difference of the weights of {names} after {new.steps} steps: {apart:.1e}")


def letters(folder: Path) -> list[str]:
    made = folder / "letters"
    subprocess.run([sys.executable, "-m", "verl_mas.testing.letters", str(made)], check=True)
    files = [f"data.train_files={made}/train.parquet", f"data.val_files={made}/test.parquet"]
    model = f"actor_rollout_ref.model.path={made}/model"
    # With the recipe's learning rate of 1e-2, Adam turns rounding into differences of 1e-5 in the weights.
    rate = "actor_rollout_ref.actor.optim.lr=1e-3"
    return ["+recipe=first_run/laptop", *files, model, rate, "data.shuffle=false", "data.max_prompt_length=128"]


def single(folder: Path, steps: int) -> None:
    task = letters(folder)
    team = ["+mas=single", "algorithm.adv_estimator=agent_grpo"]
    runs: dict[str, list[str]] = {"stock": [], "team": team, "as_verl": [*team, *ALL_PASSES]}
    done = {name: run(folder / name, steps, *task, *own) for name, own in runs.items()}
    for name in ("team", "as_verl"):
        compare(f"a team of one ({name}) against verl's trainer", done[name], done["stock"])
        compare_weights(done[name], done["stock"])
    compare_weights(done["team"], done["as_verl"])


def policies(folder: Path, steps: int) -> None:
    task = [*letters(folder), "+mas=team", "mas.workflow.name=Pair", f"mas.workflow.path={TESTS}/teams.py"]
    task += ["algorithm.adv_estimator=agent_grpo", "trainer.v1.sampler.sampler_kwargs.poll_interval=2"]
    shared = run(folder / "shared", steps, *task, "mas.agents={writer:{},copier:{}}")
    two = "mas.agents={writer:{policy:a},copier:{policy:b}}"
    compare(
        "two policies against one shared", run(folder / "two", steps, *task, "mas.policies={a:{},b:{}}", two), shared
    )


def passes(data: Path, folder: Path, steps: int) -> None:
    files = [f"data.train_files={data}/train.parquet", f"data.val_files={data}/test.parquet"]
    task = ["+recipe=smollm2/laptop", *files, f"actor_rollout_ref.model.path={data}/model"]
    task.append("algorithm.rollout_correction.bypass_mode=false")
    runs: dict[str, Run] = {}
    for name in ("every-1", "without-1", "without-2", "every-2"):
        runs[name] = run(folder / name, steps, *task, *(ALL_PASSES if "every" in name else ()), poll=0.25)
    without, every = (runs[f"{way}-1"].joined(runs[f"{way}-2"]) for way in ("without", "every"))
    compare("without the passes that change nothing, against with all of verl's", without, every)
    compare_same_rollout(without, every)
    compare_weights(without, every)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="*", choices=["single", "policies", "passes"])
    parser.add_argument("--steps", type=int, default=13)
    parser.add_argument("--data", type=Path)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        for part in given.parts or ["single", "policies"]:
            of_part = Path(name, part)
            if part == "passes":
                passes(given.data.absolute(), of_part, given.steps)
            else:
                {"single": single, "policies": policies}[part](of_part, given.steps)


if __name__ == "__main__":
    main()
