"""Simulate the asynchronous modes to compare two strategies for old tasks: drop them, or wait for them.

    python benchmarks/dropped_tasks.py [--sigma 1.0] [--wait 0.3] [--steps 400]

An engine with continuous batching takes a + c b seconds to sample a token for each of b running acts. A session has
two equal acts and a log-normal length with a mean of 200 tokens; with --wait, a tool call comes before each act. A step
has B tasks of n sessions, W batches are dispatched ahead, and a task may be trained at most T - 1 steps after its
dispatch. With `wait`, a step does not train while a task of age T is unfinished. With `drop`, tasks that end at a
higher age are discarded and replaced.

The script prints the seconds per step, those that the formula gives, the gain over the synchronous mode, the share
of dropped tasks, and the mean length of trained sessions divided by that of dispatched sessions (a bias if below 1).
"""

from __future__ import annotations

import argparse
import heapq
import math
import random
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from statistics import fmean

ACTS = 2


@dataclass(frozen=True)
class Work:
    """The sizes of a run and its costs in seconds. `update`: for log-probs, the update and the transfer of weights;
    `around`: to abort and wake the engine and to prefill again."""

    tasks: int = 16
    sessions: int = 8
    mean: float = 200.0
    sigma: float = 1.0
    wait: float = 0.0
    a: float = 0.7e-3
    c: float = 0.01e-3
    update: float = 1.1
    around: float = 0.1

    def session(self, chance: random.Random) -> list[int]:
        """Draw the numbers of tokens of a session's acts."""
        whole = chance.lognormvariate(math.log(self.mean) - self.sigma**2 / 2, self.sigma)
        return [max(1, round(whole / ACTS))] * ACTS


@dataclass(frozen=True)
class Mode:
    name: str  # sync, colocate or separate
    warm_up: int = 0
    threshold: int = 1
    strategy: str = "wait"

    def __str__(self) -> str:
        if self.name == "sync":
            return self.name
        return f"{self.name} W={self.warm_up} T={self.threshold} {self.strategy}"


@dataclass(frozen=True)
class Lengths:
    """Means over steps: tokens of all sessions of a step, of its longest session, and of a task's longest one."""

    total: float
    longest_of_step: float
    longest_of_task: float


def formula(mode: Mode, work: Work, lengths: Lengths) -> float:
    """Return the seconds per step by the formula. It counts waits for tools in the longest session only."""
    waits = ACTS * work.wait
    decoding = work.c * lengths.total
    if mode.name == "sync":
        return work.a * lengths.longest_of_step + waits + decoding + work.update
    if mode.threshold == mode.warm_up + 1:
        longest = (work.a * lengths.longest_of_step + waits) / (mode.warm_up + 1)
    else:
        longest = (work.a * lengths.longest_of_task + waits) / (mode.warm_up + 0.5)
    rollout = longest + decoding + work.around
    if mode.name == "colocate":
        return rollout + work.update
    return max(work.update + work.around, rollout)


@dataclass
class Session:
    task: Task
    acts: list[int]
    place: int = 0


@dataclass
class Task:
    dispatched: int
    open: int = 0
    lengths: list[int] = field(default_factory=list)


class Engine:
    """A simulated engine. Heaps hold the running acts, by the token at which each ends, and the running tool calls, by
    the second at which each ends."""

    def __init__(self, work: Work):
        self.work = work
        self.now = self.tokens = 0.0
        self._acts: list[tuple[float, int, Session]] = []
        self._tools: list[tuple[float, int, Session]] = []
        self._count = 0
        self.ended: list[Task] = []

    def start(self, session: Session) -> None:
        """Start the tool call that comes before the session's next act."""
        self._count += 1
        heapq.heappush(self._tools, (self.now + self.work.wait, self._count, session))

    def run(self, done: Callable[[], bool], until: float = math.inf) -> None:
        """Decode until `done()` is true or the simulated time reaches `until`."""
        while not done():
            rate = self.work.a + self.work.c * len(self._acts)
            end = self.now + (self._acts[0][0] - self.tokens) * rate if self._acts else math.inf
            tool = max(self._tools[0][0], self.now) if self._tools else math.inf
            moment = min(end, tool, until)
            assert moment < math.inf, "nothing runs and nothing is due"
            if self._acts:
                self.tokens += (moment - self.now) / rate
            self.now = moment
            if moment == until:
                return
            if tool <= end:
                self._admit(heapq.heappop(self._tools)[2])
            else:
                self.tokens, _, session = heapq.heappop(self._acts)
                self._end(session)

    def _admit(self, session: Session) -> None:
        self._count += 1
        heapq.heappush(self._acts, (self.tokens + session.acts[session.place], self._count, session))

    def _end(self, session: Session) -> None:
        session.place += 1
        if session.place < len(session.acts):
            self.start(session)
            return
        session.task.open -= 1
        if not session.task.open:
            self.ended.append(session.task)


class Run:
    def __init__(self, mode: Mode, work: Work, seed: int):
        self.mode, self.work, self.chance = mode, work, random.Random(seed)
        self.engine = Engine(work)
        self.running: list[Task] = []
        self.kept: list[Task] = []
        self.trained: list[Task] = []
        self.dropped: list[Task] = []
        self.dispatched: dict[int, list[int]] = defaultdict(list)
        """Tokens of sessions, by the step of their dispatch."""

    def steps(self, count: int, skip: int | None = None) -> float:
        """Return the mean seconds per step, without the first `skip` steps or, by default, the first quarter."""
        times = [self.engine.now]
        for back in reversed(range(self.mode.warm_up)):
            self.dispatch(self.work.tasks, -back)
        for step in range(1, count + 1):
            self.step(step)
            times.append(self.engine.now)
        first = count // 4 if skip is None else skip
        return (times[-1] - times[first]) / (count - first)

    def step(self, step: int) -> None:
        self.dispatch(self.work.tasks, step)
        self.engine.run(lambda: self.enough(step))
        self.kept.sort(key=lambda task: task.dispatched)
        self.trained += self.kept[: self.work.tasks]
        del self.kept[: self.work.tasks]
        engine, work = self.engine, self.work
        if self.mode.name == "separate":
            engine.run(lambda: False, until=engine.now + work.update)
        elif self.mode.name == "colocate":
            engine.now += work.update
        else:
            engine.now += work.update - work.around
        engine.now += work.around

    def dispatch(self, tasks: int, step: int) -> None:
        for _ in range(tasks):
            task = Task(step, self.work.sessions)
            self.running.append(task)
            for _ in range(self.work.sessions):
                session = Session(task, self.work.session(self.chance))
                task.lengths.append(sum(session.acts))
                self.engine.start(session)
            self.dispatched[step] += task.lengths

    def enough(self, step: int) -> bool:
        if self.engine.ended:
            self.kept += self.engine.ended
            self.running = [task for task in self.running if task.open]
            self.engine.ended.clear()
        if self.mode.strategy == "drop":
            old = [task for task in self.kept if self.age(task, step) > self.mode.threshold]
            if old:
                self.kept = [task for task in self.kept if task not in old]
                self.dropped += old
                self.dispatch(len(old), step)
        elif any(self.age(task, step) >= self.mode.threshold for task in self.running):
            return False
        return len(self.kept) >= self.work.tasks

    @staticmethod
    def age(task: Task, step: int) -> int:
        return step - task.dispatched + 1

    @property
    def dropped_share(self) -> float:
        return len(self.dropped) / max(1, len(self.dropped) + len(self.trained))

    @property
    def length_ratio(self) -> float:
        """Return the mean length of trained sessions divided by that of dispatched sessions."""
        trained = [length for task in self.trained for length in task.lengths]
        return fmean(trained) / fmean(length for tasks in self.dispatched.values() for length in tasks)

    def lengths(self) -> Lengths:
        tasks = [task.lengths for task in self.trained]
        steps = [own for step, own in self.dispatched.items() if step > 0]
        return Lengths(fmean(map(sum, steps)), fmean(map(max, steps)), fmean(max(lengths) for lengths in tasks))


def modes(names: Sequence[str] = ("colocate", "separate")) -> list[Mode]:
    pairs = ((1, 2), (1, 4), (2, 3), (2, 6))
    return [Mode("sync"), *(Mode(name, w, t, how) for name in names for how in ("wait", "drop") for w, t in pairs)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    given = Work()
    for name in ("tasks", "sessions"):
        parser.add_argument(f"--{name}", type=int, default=getattr(given, name))
    for name in ("mean", "sigma", "wait", "a", "c", "update", "around"):
        parser.add_argument(f"--{name}", type=float, default=getattr(given, name))
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--seeds", type=int, default=3)
    options = vars(parser.parse_args())
    steps, seeds = options.pop("steps"), options.pop("seeds")
    work = Work(**options)
    print(f"{'mode':24} {'s/step':>7} {'formula':>8} {'gain':>6} {'dropped':>8} {'trained length':>15}")
    sync = math.nan
    for mode in modes():
        runs = [Run(mode, work, seed) for seed in range(seeds)]
        seconds = fmean(run.steps(steps) for run in runs)
        if mode.name == "sync":
            sync, lengths = seconds, runs[0].lengths()
        # The formula does not hold for `drop`, because the trained tasks are shorter than it assumes.
        expected = f"{formula(mode, work, lengths):8.2f}" if mode.strategy == "wait" else f"{'-':>8}"
        print(
            f"{mode!s:24} {seconds:7.2f} {expected} {sync / seconds:5.2f}x {fmean(r.dropped_share for r in runs):8.1%} "
            f"{fmean(r.length_ratio for r in runs):15.3f}"
        )


if __name__ == "__main__":
    main()
