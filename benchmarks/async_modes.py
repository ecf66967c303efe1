"""Compare seconds per step of the synchronous and both asynchronous modes on the same work, and with the formula.

    python -m benchmarks.async_modes [--modes sync,colocate:1:2,separate:1:2] [--wait 0.3] [--seeds 3]

A mode is written as its name, W (`num_warmup_batches`) and T (`max_off_policy_threshold`), and has the strategy `wait`.
The model is tiny; a session has a log-normal length and acts of 128 tokens (`benchmarks.async_team`). In all modes,
engines and workflows run on one core and everything else on another core, so the machine needs two cores, and no other
program may run on it. If the command is repeated, it only runs what --folder does not have yet.

a and c, seconds per token of an engine and of a running act, are fitted to the steps of the synchronous run; U (the
rest of its step) and o (by how much the rest is longer with abort, wake and prefill) come from the runs' timelines.
The table also has the event simulation of `benchmarks.dropped_tasks` with these costs and the runs' own sessions.
"""

from __future__ import annotations

import argparse
import os
import random
import shutil
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from statistics import fmean
from typing import NamedTuple

import numpy as np

from benchmarks.async_team import acts_of
from benchmarks.dropped_tasks import Lengths, Mode, Run, Work, formula
from benchmarks.soak import processes
from verl_mas.results.sessions.reader import read_sessions
from verl_mas.testing import letters
from verl_mas.trainer.timeline import ENGINE, LOG_PROBS, SAMPLE, STEP, UPDATE, TimelineEvent, read_timeline

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
ROLLOUT = ("Transformers", "AgentLoopWorker")  # parts of the names of processes that sample
ENDED = "ended"  # name of a file in the folder of a run that has ended


@dataclass(frozen=True)
class Measured:
    """The numbers of one run after its warm-up steps."""

    step: float
    sample: float
    """Seconds per step in which the trainer waits for tasks."""

    training: float
    engine: float
    """`engine`: share of the time in which an engine had requests; `training`: share in which policies were trained."""

    samples: tuple[tuple[int, float], ...]
    """Step and seconds of each wait for tasks."""

    @property
    def rest(self) -> float:
        return self.step - self.sample


def parse_mode(text: str) -> Mode:
    """Parse a mode such as `colocate:1:2`."""
    name, _, rest = text.partition(":")
    numbers = [int(part) for part in rest.split(":")] if rest else []
    if name not in WORDS or (name == "sync") == bool(numbers) or len(numbers) not in (0, 2):
        raise SystemExit(f"--modes {text}: use sync, colocate:W:T or separate:W:T")
    return Mode(name, *numbers)


def measured(events: Sequence[TimelineEvent], skip: int) -> Measured:
    """Measure a run from its events, without the first `skip` steps and without the last step, whose end is unknown."""
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


class Played(NamedTuple):
    """The size of a recorded session."""

    tokens: int
    acts: int


def lengths_of(tasks: Sequence[Sequence[Sequence[Played]]], wait: float) -> Lengths:
    """Return the mean lengths that the formula needs. `tasks` has the sessions of each task of each step.

    `wait`: the time of a tool before each act, as the number of tokens that are decoded in that time.
    """
    steps = [[session for task in step for session in task] for step in tasks]

    def longest(sessions: Sequence[Played]) -> float:
        return max(session.tokens + wait * session.acts for session in sessions)

    return Lengths(
        fmean(sum(session.tokens for session in step) for step in steps),
        fmean(map(longest, steps)),
        fmean(longest(task) for step in tasks for task in step),
    )


def fit(steps: Sequence[tuple[float, Sequence[Played]]], wait: float) -> tuple[float, float]:
    """Fit a and c by least squares to the seconds and the sessions of steps.

    The model is `seconds = a * longest + c * total + waits of the longest`, in tokens of sessions.
    """
    longest = [max(sessions) for _, sessions in steps]
    sizes = [(most.tokens, sum(s.tokens for s in sessions)) for most, (_, sessions) in zip(longest, steps, strict=True)]
    decoding = [seconds - wait * most.acts for most, (seconds, _) in zip(longest, steps, strict=True)]
    (a, c), *_ = np.linalg.lstsq(np.array(sizes), np.array(decoding), rcond=None)
    return float(a), float(c)


@dataclass(frozen=True)
class Recorded(Work):
    """The work of a simulation that repeats the sessions of a run, in the order of their tasks."""

    acts: Iterator[list[int]] = field(default_factory=lambda: iter(()))

    def session(self, chance: random.Random) -> list[int]:
        return next(self.acts)


def simulated(mode: Mode, work: Work, tasks: Sequence[Sequence[Sequence[Played]]], act: int, skip: int) -> float:
    """Predict the seconds per step. `tasks`: for each synchronous step, the sessions of its tasks."""
    acts = (acts_of(session.tokens, act) for step in tasks for task in step for session in task)
    sizes = {"tasks": len(tasks[0]), "sessions": len(tasks[0][0])}
    recorded = Recorded(**{**asdict(work), **sizes}, acts=acts)
    return Run(mode, recorded, seed=0).steps(len(tasks) - mode.warm_up, skip)


def played(folder: Path, tasks: int, sessions: int) -> dict[int, list[list[Played]]]:
    """Read the sessions of a run, grouped by step and task. Incomplete steps are skipped."""
    found: dict[int, dict[str, list[Played]]] = defaultdict(lambda: defaultdict(list))
    for session in read_sessions(folder / "checkpoints" / "trajectories"):
        tokens = sum(act["sampled_tokens"] for act in session["acts"])
        found[session["step"]][session["uid"]].append(Played(tokens, len(session["acts"])))
    return {step: list(own.values()) for step, own in found.items() if [*map(len, own.values())] == [sessions] * tasks}


def command(mode: Mode, folder: Path, data: Path, args: argparse.Namespace, seed: int) -> Iterator[str]:
    yield from (sys.executable, "-m", "verl.trainer.main_ppo", *TEAM)
    yield f"mas.workflow.path={Path(__file__).with_name('async_team.py')}"
    for name in ("mean", "sigma", "wait", "longest", "act"):
        yield f"++mas.workflow.args.{name}={getattr(args, name)}"
    yield f"++mas.workflow.args.seed={seed}"
    yield f"data.train_batch_size={args.tasks}"
    yield f"actor_rollout_ref.actor.ppo_mini_batch_size={args.tasks}"
    yield f"actor_rollout_ref.rollout.n={args.sessions}"
    yield f"data.max_response_length={args.act}"
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


def play(mode: Mode, folder: Path, data: Path, args: argparse.Namespace, seed: int) -> list[TimelineEvent]:
    """Run once, and bind each process to its core when it appears. If the folder has a finished run, only read it."""
    if (folder / ENDED).exists():
        return read_timeline(folder / "checkpoints")
    shutil.rmtree(folder, ignore_errors=True)
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
    (folder / ENDED).touch()
    return read_timeline(folder / "checkpoints")


def bind(root: int, rollout: int, others: int) -> None:
    for process in processes(root, 0):
        core = rollout if any(name in process.process for name in ROLLOUT) else others
        with suppress(OSError):
            for thread in Path(f"/proc/{process.pid}/task").iterdir():
                if os.sched_getaffinity(int(thread.name)) != {core}:
                    os.sched_setaffinity(int(thread.name), {core})


def report(mode: Mode, runs: Sequence[Measured], sync: float, expected: Sequence[float]) -> str:
    step = fmean(run.step for run in runs)
    models = " ".join(f"{seconds:8.2f} {step / seconds - 1:+7.1%}" for seconds in expected)
    rest, engine, training = (fmean(getattr(run, name) for run in runs) for name in ("rest", "engine", "training"))
    return f"{mode!s:24} {step:7.2f} {sync / step:5.2f}x {models} {rest:6.2f} {engine:7.0%} {training:9.0%}"


def main() -> None:
    args = arguments()
    chosen = [parse_mode(text) for text in args.modes.split(",")]
    if chosen[0].name != "sync":
        raise SystemExit(f"--modes {args.modes}: sync comes first, the others are compared with it")
    data = args.folder.absolute() / "data"
    if not data.exists():
        letters.prepare(data)
    print(
        f"{'mode':24} {'s/step':>7} {'gain':>6} {'formula':>8} {'off':>7} {'simul.':>8} {'off':>7} {'rest':>6} "
        f"{'engine':>7} {'training':>9}"
    )
    work, lengths, tasks, sync = None, None, [], 0.0
    for mode in chosen:
        # Hydra reads `=` in a path as another argument.
        name = f"{mode.name}-{mode.warm_up}-{mode.threshold}-"
        folders = [args.folder.absolute() / f"{name}{seed}" for seed in range(args.seeds)]
        runs = [measured(play(mode, folder, data, args, seed), args.skip) for seed, folder in enumerate(folders)]
        rest = fmean(run.rest for run in runs)
        if mode.name == "sync":
            tasks = [played(folder, args.tasks, args.sessions) for folder in folders]
            a, c = fit([*sampling(runs, tasks)], args.wait)
            work = Work(wait=args.wait, a=a, c=c, update=rest, around=0.0)
            lengths = lengths_of([step for of_run in tasks for step in of_run.values()], args.wait / a)
            sync = fmean(run.step for run in runs)
            print(f"a {a * 1e3:.3f} ms, c {c * 1e3:.4f} ms, U {work.update:.2f} s, {lengths}")
        assert work is not None and lengths is not None
        model = replace(work, around=max(0.0, rest - work.update))
        # The lengths already include the waits, so the formula gets no wait.
        expected = formula(mode, replace(model, wait=0.0), lengths)
        events = fmean(simulated(mode, model, [*of_run.values()], args.act, args.skip) for of_run in tasks)
        print(report(mode, runs, sync, [expected, events]), flush=True)


def sampling(
    runs: Sequence[Measured], tasks: Sequence[Mapping[int, Sequence[Sequence[Played]]]]
) -> Iterator[tuple[float, list[Played]]]:
    """Yield the seconds of waiting and the sessions of each synchronous step."""
    for run, of_run in zip(runs, tasks, strict=True):
        for step, seconds in run.samples:
            if step in of_run:
                yield seconds, [session for task in of_run[step] for session in task]


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--modes", default="sync,colocate:1:2,colocate:1:4,colocate:2:3,separate:1:2,separate:2:3")
    parser.add_argument("--steps", type=int, default=24)
    parser.add_argument("--skip", type=int, default=4, help="steps that are left out")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--tasks", type=int, default=8)
    parser.add_argument("--sessions", type=int, default=8)
    parser.add_argument("--mean", type=float, default=200.0, help="tokens of a session")
    parser.add_argument("--sigma", type=float, default=1.0)
    parser.add_argument("--longest", type=int, default=4000, help="tokens at which a session ends")
    parser.add_argument("--act", type=int, default=128, help="tokens of an act")
    parser.add_argument("--wait", type=float, default=0.0, help="seconds of a tool before each act")
    parser.add_argument("--cores", type=int, nargs=2, default=(0, 1), help="of engines and workflows, and of the rest")
    parser.add_argument("--folder", type=Path, default=Path("runs/async_modes"))
    parser.add_argument("overrides", nargs="*", help="further arguments of main_ppo")
    return parser.parse_args()


if __name__ == "__main__":
    main()
