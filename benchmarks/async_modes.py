"""Seconds per step of the synchronous mode and of both asynchronous ones, on the same work, beside the formula.

    python -m benchmarks.async_modes [--modes sync,colocate:1:2,separate:1:2] [--wait 0.3] [--seeds 3]

A mode is its name, W (`num_warmup_batches`) and T (`max_off_policy_threshold`), with the strategy `wait`. The model is
tiny, a session has two acts and a log-normal length (`benchmarks.async_team`). Engines are on one core and everything
else on another, in all modes; so the machine needs two cores and nothing else may run on it.

a and c, seconds per token of an engine and of a running act, are fitted to the steps of the synchronous run; U (the
rest of its step) and o (by how much the rest is longer with abort, wake and prefill) come from the runs' timelines.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean

import numpy as np

from benchmarks.dropped_tasks import Lengths, Mode, Work, formula
from benchmarks.soak import processes
from verl_mas.demos import letters
from verl_mas.rollout.trajectories import read_sessions
from verl_mas.trainer.timeline import ENGINE, LOG_PROBS, SAMPLE, STEP, UPDATE, Event, read_timeline

TEAM = """
+platform=cpu +recipe=first_run/laptop +mas=team mas.workflow.name=LongTail mas.policies={main:{}}
mas.agents={first:{policy:main},second:{policy:main}} algorithm.adv_estimator=agent_grpo data.shuffle=false
data.max_prompt_length=64 actor_rollout_ref.rollout.agent.num_workers=1 reward.num_workers=1
actor_rollout_ref.rollout.max_num_seqs=1024 mas.max_sessions=2048 mas.trajectories.max_text_chars=8
trainer.val_before_train=false trainer.test_freq=-1 trainer.save_freq=-1 trainer.resume_mode=disable
trainer.v1.sampler.sampler_kwargs.poll_interval=0.02
""".split()
SEPARATE = """
++mas.pools.engines={n_gpus_per_node:1} ++mas.policies.main.engines=engines ++ray_kwargs.ray_init.num_gpus=2
""".split()
WORDS = {"sync": "sync", "colocate": "colocate_async", "separate": "separate_async"}
ENGINES = "Transformers"  # in the name of an engine's process


@dataclass(frozen=True)
class Measured:
    """Of one run, after the warm-up steps."""

    step: float
    sample: float
    """Seconds of a step in which the trainer waits for tasks."""

    training: float
    engine: float
    """Share of the time in which an engine had requests, and of that in which policies were trained."""

    samples: tuple[tuple[int, float], ...]
    """Step and seconds of each wait."""

    @property
    def rest(self) -> float:
        return self.step - self.sample


def parse_mode(text: str) -> Mode:
    """`colocate:1:2`."""
    name, _, rest = text.partition(":")
    numbers = [int(part) for part in rest.split(":")] if rest else []
    if name not in WORDS or (name == "sync") == bool(numbers) or len(numbers) not in (0, 2):
        raise SystemExit(f"--modes {text}: use sync, colocate:W:T or separate:W:T")
    return Mode(name, *numbers)


def measured(events: Sequence[Event], skip: int) -> Measured:
    """Without the first `skip` steps, and without the last one, which no other step ends."""
    begins = {event.step: event.begin for event in events if event.event == STEP}
    first, last = min(begins) + skip, max(begins)
    if last - first < 2:
        raise SystemExit(f"steps {first} to {last} were recorded: run more than {skip + 2}")
    begin, end = begins[first], begins[last]
    window = [event for event in events if begin <= event.begin < end]
    samples = tuple((event.step, event.seconds) for event in window if event.event == SAMPLE)

    def share(*kinds: str) -> float:
        return sum(min(e.end, end) - e.begin for e in window if e.event in kinds) / (end - begin)

    count = last - first
    return Measured(
        (end - begin) / count,
        sum(seconds for _, seconds in samples) / count,
        share(LOG_PROBS, UPDATE),
        share(ENGINE),
        samples,
    )


def lengths_of(tasks: Sequence[Sequence[Sequence[int]]]) -> Lengths:
    """Of steps, their tasks, and the tokens of these tasks' sessions."""
    steps = [[length for task in step for length in task] for step in tasks]
    return Lengths(fmean(map(sum, steps)), fmean(map(max, steps)), fmean(max(task) for step in tasks for task in step))


def fit(samples: Sequence[tuple[float, float, float]], waits: float) -> tuple[float, float]:
    """a and c of `seconds = a longest + c total + waits`, by least squares over (seconds, longest, total)."""
    seconds, longest, total = np.array(samples).T
    (a, c), *_ = np.linalg.lstsq(np.stack([longest, total], axis=1), seconds - waits, rcond=None)
    return float(a), float(c)


def played(folder: Path, tasks: int) -> dict[int, list[list[int]]]:
    """Tokens of sessions by step and task, of steps with all of their tasks."""
    found: dict[int, dict[str, list[int]]] = defaultdict(lambda: defaultdict(list))
    for session in read_sessions(folder / "checkpoints" / "trajectories"):
        found[session["step"]][session["uid"]].append(sum(act["sampled_tokens"] for act in session["acts"]))
    return {step: list(own.values()) for step, own in found.items() if len(own) == tasks}


def command(mode: Mode, folder: Path, data: Path, args: argparse.Namespace, seed: int) -> Iterator[str]:
    yield from (sys.executable, "-m", "verl.trainer.main_ppo", *TEAM)
    yield f"mas.workflow.path={Path(__file__).with_name('async_team.py')}"
    for name in ("mean", "sigma", "wait", "longest"):
        yield f"++mas.workflow.args.{name}={getattr(args, name)}"
    yield f"++mas.workflow.args.seed={seed}"
    yield f"data.train_batch_size={args.tasks}"
    yield f"actor_rollout_ref.actor.ppo_mini_batch_size={args.tasks}"
    yield f"actor_rollout_ref.rollout.n={args.sessions}"
    yield f"data.max_response_length={args.longest // 2}"
    yield f"data.train_files={data}/train.parquet"
    yield f"data.val_files={data}/test.parquet"
    yield f"actor_rollout_ref.model.path={data}/model"
    yield f"trainer.total_training_steps={args.steps}"
    yield f"trainer.default_local_dir={folder}/checkpoints"
    yield f"hydra.run.dir={folder}/hydra"
    yield f"+mas/mode={WORDS[mode.name]}"
    if mode.name != "sync":
        yield f"trainer.v1.{WORDS[mode.name]}.num_warmup_batches={mode.warm_up}"
        yield f"trainer.v1.sampler.max_off_policy_threshold={mode.threshold}"
        yield f"trainer.v1.sampler.max_off_policy_strategy={mode.strategy}"
    if mode.name == "separate":
        yield from SEPARATE
    yield from args.overrides


def play(mode: Mode, folder: Path, data: Path, args: argparse.Namespace, seed: int) -> None:
    """One run, its processes bound to their cores as they appear."""
    folder.mkdir(parents=True)
    with (folder / "log.txt").open("wb") as log:
        run = subprocess.Popen(
            [*command(mode, folder, data, args, seed)],
            cwd=folder,
            env=os.environ | {"OMP_NUM_THREADS": "1"},
            stdout=log,
            stderr=subprocess.STDOUT,
        )
        try:
            while run.poll() is None:
                bind(run.pid, *args.cores)
                time.sleep(1.0)
        finally:
            run.terminate()
    if run.wait():
        raise SystemExit(f"the run ended with {run.returncode}; see {folder}/log.txt")


def bind(root: int, engines: int, others: int) -> None:
    for process in processes(root, 0):
        core = engines if ENGINES in process.process else others
        with suppress(OSError):
            for thread in Path(f"/proc/{process.pid}/task").iterdir():
                if os.sched_getaffinity(int(thread.name)) != {core}:
                    os.sched_setaffinity(int(thread.name), {core})


def report(mode: Mode, runs: Sequence[Measured], sync: float | None, expected: float | None) -> str:
    step = fmean(run.step for run in runs)
    gain = "" if sync is None else f"{sync / step:5.2f}x"
    text = "" if expected is None else f"{expected:8.2f} {step / expected - 1:+7.1%}"
    rest, engine, training = (fmean(getattr(run, name) for run in runs) for name in ("rest", "engine", "training"))
    return f"{mode!s:24} {step:7.2f} {gain:>6} {text:16} {rest:6.2f} {engine:7.0%} {training:9.0%}"


def main() -> None:
    args = arguments()
    chosen = [parse_mode(text) for text in args.modes.split(",")]
    if chosen[0].name != "sync":
        raise SystemExit(f"--modes {args.modes}: sync comes first, the others are compared with it")
    data = args.folder.absolute() / "data"
    letters.prepare(data)
    print(f"{'mode':24} {'s/step':>7} {'gain':>6} {'formula':>8} {'off':>7} {'rest':>6} {'engine':>7} {'training':>9}")
    work, lengths, sync = None, None, None
    for mode in chosen:
        runs = []
        for seed in range(args.seeds):
            # Hydra reads `=` in a path as another argument.
            folder = args.folder.absolute() / f"{mode.name}-{mode.warm_up}-{mode.threshold}-{seed}"
            play(mode, folder, data, args, seed)
            runs.append(measured(read_timeline(folder / "checkpoints"), args.skip))
        if mode.name == "sync":
            tasks = played(folder, args.tasks)
            steps = [(s, max(map(max, tasks[n])), sum(map(sum, tasks[n]))) for n, s in runs[-1].samples if n in tasks]
            a, c = fit(steps, 2 * args.wait)
            work = Work(wait=args.wait, a=a, c=c, update=fmean(run.rest for run in runs), around=0.0)
            lengths, sync = lengths_of(list(tasks.values())), fmean(run.step for run in runs)
            print(f"a {a * 1e3:.3f} ms, c {c * 1e3:.4f} ms, U {work.update:.2f} s")
        assert work is not None and lengths is not None
        around = fmean(run.rest for run in runs) - work.update
        model = Work(wait=work.wait, a=work.a, c=work.c, update=work.update, around=max(0.0, around))
        print(report(mode, runs, sync, formula(mode, model, lengths)), flush=True)


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--modes", default="sync,colocate:1:2,colocate:1:4,colocate:2:3,separate:1:2,separate:2:3")
    parser.add_argument("--steps", type=int, default=24)
    parser.add_argument("--skip", type=int, default=4, help="steps that are left out")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--tasks", type=int, default=16)
    parser.add_argument("--sessions", type=int, default=8)
    parser.add_argument("--mean", type=float, default=200.0, help="tokens of a session")
    parser.add_argument("--sigma", type=float, default=1.0)
    parser.add_argument("--longest", type=int, default=4000, help="tokens at which a session ends")
    parser.add_argument("--wait", type=float, default=0.0, help="seconds of a tool before each act")
    parser.add_argument("--cores", type=int, nargs=2, default=(0, 1), help="of the engines, and of the rest")
    parser.add_argument("--folder", type=Path, default=Path("runs/async_modes"))
    parser.add_argument("overrides", nargs="*", help="further arguments of main_ppo")
    args = parser.parse_args()
    if args.folder.exists():
        raise SystemExit(f"--folder {args.folder} exists: choose another one")
    return args


if __name__ == "__main__":
    main()
