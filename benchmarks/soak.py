"""Measure memory, descriptors and threads of every process after each step of a long training run.

python benchmarks/soak.py --steps 500 --folder runs/soak
python benchmarks/soak.py --steps 200 --warm-up 40 --mode colocate_async --ahead 7 --outstanding 1200

It prints the growth per step of each process after the warm-up, and fails if one of verl-mas's or verl's processes
grows by more than the limit or keeps descriptors. Ray's own processes are listed, but their growth does not fail the
benchmark, because Ray's GCS remembers 100,000 tasks.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from statistics import linear_regression

from verl_mas.testing import letters

LIMIT_KIB = 2.0
ASYNCHRONOUS = ("colocate_async", "separate_async")
SESSIONS = 8  # per task, with `--outstanding`
# Beginnings of the names of Ray's own processes.
RAYS_OWN = ("ray: ", "DashboardAgent", "RuntimeEnvAgent", "IDLE")
TEAM = """
+platform=cpu +recipe=first_run/laptop +mas=solver_verifier algorithm.adv_estimator=agent_grpo
data.train_batch_size=4 actor_rollout_ref.rollout.n=4 actor_rollout_ref.actor.ppo_mini_batch_size=4
data.max_prompt_length=256 actor_rollout_ref.rollout.agent.num_workers=1 reward.num_workers=1
trainer.val_before_train=false trainer.test_freq=25 trainer.save_freq=25 trainer.max_actor_ckpt_to_keep=2
trainer.resume_mode=disable
""".split()


@dataclass(frozen=True)
class Sample:
    step: int
    process: str
    pid: int
    parent: int
    anonymous_kib: int
    descriptors: int
    threads: int


def main() -> int:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--steps", type=int, default=500)
    arguments.add_argument("--warm-up", type=int, default=100, help="steps that are left out")
    arguments.add_argument("--folder", type=Path, default=Path("runs/soak"))
    arguments.add_argument("--mode", choices=["sync", *ASYNCHRONOUS], default="sync", help="as in +mas/mode")
    arguments.add_argument("--ahead", type=int, default=1, help="W of an asynchronous mode; T is W + 1")
    arguments.add_argument(
        "--outstanding", type=int, help="about so many sessions in flight: tasks per step are chosen"
    )
    arguments.add_argument("overrides", nargs="*", help="further arguments of main_ppo")
    asked = arguments.parse_args()
    if asked.steps - asked.warm_up < 20:
        arguments.error("--steps must be at least 20 more than --warm-up: a growth per step is fitted to the rest")
    folder = asked.folder.absolute()
    letters.prepare(folder)
    overrides = [*load(asked.mode, asked.ahead, asked.outstanding), *asked.overrides]
    samples = list(watch(start(folder, asked.steps, overrides), folder))
    with (folder / "samples.jsonl").open("w") as out:
        out.writelines(json.dumps(asdict(sample)) + "\n" for sample in samples)
    return report(samples, asked.warm_up, asked.steps)


def load(mode: str, ahead: int, outstanding: int | None) -> Iterator[str]:
    """Yield the arguments of a mode with this many sessions in flight, each with one running act."""
    if mode in ASYNCHRONOUS:
        yield f"+mas/mode={mode}"
        yield f"trainer.v1.{mode}.num_warmup_batches={ahead}"
        yield f"trainer.v1.sampler.max_off_policy_threshold={ahead + 1}"
    if mode == "separate_async":
        yield from ("++mas.pools.engines={n_gpus_per_node:1}", "++mas.policies.main.engines=engines")
        yield "++ray_kwargs.ray_init.num_gpus=2"
    if outstanding is not None:
        tasks = math.ceil(outstanding / SESSIONS / (ahead + 1 if mode in ASYNCHRONOUS else 1))
        yield f"data.train_batch_size={tasks}"
        yield f"actor_rollout_ref.actor.ppo_mini_batch_size={tasks}"
        yield f"actor_rollout_ref.rollout.n={SESSIONS}"
        yield f"mas.max_sessions={outstanding}"


def start(folder: Path, steps: int, overrides: list[str]) -> subprocess.Popen[bytes]:
    paths = [
        f"data.train_files={folder}/train.parquet",
        f"data.val_files={folder}/test.parquet",
        f"actor_rollout_ref.model.path={folder}/model",
        f"trainer.default_local_dir={folder}/checkpoints",
        f"hydra.run.dir={folder}/hydra",
        f"trainer.total_training_steps={steps}",
    ]
    (folder / "metrics.jsonl").unlink(missing_ok=True)
    return subprocess.Popen(
        [sys.executable, "-m", "verl.trainer.main_ppo", *TEAM, *paths, *overrides],
        env=os.environ | {"VERL_FILE_LOGGER_PATH": str(folder / "metrics.jsonl")},
        stdout=(folder / "log.txt").open("wb"),
        stderr=subprocess.STDOUT,
    )


def watch(run: subprocess.Popen[bytes], folder: Path) -> Iterator[Sample]:
    """Yield a sample of every process after every step."""
    metrics, seen = folder / "metrics.jsonl", 0
    try:
        while run.poll() is None:
            time.sleep(0.2)
            step = len(metrics.read_bytes().splitlines()) if metrics.exists() else 0
            if step > seen:
                seen = step
                yield from processes(run.pid, step)
    finally:
        run.terminate()
    if run.wait():
        raise SystemExit(f"the run ended with {run.returncode}; see {folder}/log.txt")


def processes(root: int, step: int) -> Iterator[Sample]:
    """Yield a sample of a process and of each of its descendants."""
    found = {process.pid: process for process in map(read, Path("/proc").glob("[0-9]*")) if process is not None}
    descends = {root}
    # A child may be read before its parent, so search again for each generation.
    while more := {pid for pid, process in found.items() if process.parent in descends} - descends:
        descends |= more
    for pid in descends & set(found):
        yield replace(found[pid], step=step)


def read(folder: Path) -> Sample | None:
    try:
        status = dict(line.split(":", 1) for line in (folder / "status").read_text().splitlines())
        return Sample(
            step=0,
            process=name_of((folder / "cmdline").read_bytes()),
            pid=int(folder.name),
            parent=int(status["PPid"]),
            anonymous_kib=int(status["RssAnon"].split()[0]),
            descriptors=len(list((folder / "fd").iterdir())),
            threads=int(status["Threads"]),
        )
    except (OSError, KeyError):
        return None  # the process has ended, belongs to another user, or is a thread of the kernel


def name_of(command: bytes) -> str:
    """Return the name of a process: `TaskRunner` for `ray::TaskRunner.run`, else the program's name."""
    words = command.replace(b"\0", b" ").decode(errors="replace").split()
    first = words[0] if words else "?"
    if first.startswith("ray::"):
        return first.removeprefix("ray::").split(".")[0].split("(")[0]
    if any(word.endswith("main_ppo") for word in words):
        return "driver"
    programs = [word for word in words if not word.startswith("-")]
    return f"ray: {Path(programs[1] if 'python' in first and len(programs) > 1 else first).name}"


def report(samples: list[Sample], warm_up: int, steps: int) -> int:
    last = max((sample.step for sample in samples), default=0)
    if last < steps - 1:
        raise SystemExit(f"the run logged {last} steps, not {steps}")
    sys.stdout.write(f"{'process':28} {'KiB per step':>12} {'MiB at end':>10} {'descriptors':>12} {'threads':>9}\n")
    failed = False
    for pid in sorted({sample.pid for sample in samples if sample.step == last - 1}):
        rows = [sample for sample in samples if sample.pid == pid and sample.step > warm_up]
        if len(rows) < 20:
            continue
        slope = linear_regression([row.step for row in rows], [row.anonymous_kib for row in rows]).slope
        kept = rows[-1].descriptors - rows[0].descriptors
        judged = not rows[-1].process.startswith(RAYS_OWN)
        bad = judged and (slope > LIMIT_KIB or kept > 2)
        failed |= bad
        sys.stdout.write(
            f"{rows[-1].process:28} {slope:12.1f} {rows[-1].anonymous_kib / 1024:10.0f} "
            f"{rows[0].descriptors:5} -> {rows[-1].descriptors:3} {rows[0].threads:3} -> {rows[-1].threads:3}"
            f"{'  over the limit' if bad else ''}\n"
        )
    sys.stdout.write(f"{last} steps; limit {LIMIT_KIB:g} KiB per step and process, descriptors constant\n")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
