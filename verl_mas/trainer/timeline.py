"""Timeline of a run: spans of the trainer and of the engines, as Trace Events, which Perfetto and Chrome draw.

<trainer.default_local_dir>/timeline.json    a JSON array without the final `]`, as the format allows; an event per line

Times are wall-clock times. The format has processes and threads: here a process is a pool, and a thread is an engine or
a trainer. The timeline begins with the run's command; the parts of the start have the number of the first step. A run
that resumes appends to the file, and its event `start` has the step at which the run resumes. Events of this step and
of later steps that were written before `start` are ignored.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

from verl_mas.errors import DataError
from verl_mas.rollout.busy import Span, merge_spans, seconds
from verl_mas.run_folder.disk import append_line, recording
from verl_mas.run_folder.metrics import names as metric_names
from verl_mas.workflow import clock

FILE = "timeline.json"
# Names of events.
START, STEP, SAMPLE, ENGINE = "start", "step", "sample", "engine"
LOG_PROBS, UPDATE = "log_probs", "update"
ABORT, SLEEP, WAKE, RESUME = "abort", "sleep", "wake", "resume"
SAVE, VALIDATE = "save", "validate"
# Parts of a start that belong to the run.
CHECKS, RAY, TASK_RUNNER, DATA, CHECKPOINT = "checks", "ray", "task_runner", "data", "checkpoint"
# Parts of a start that belong to a policy: training processes import (PROCESSES) and load the model (LOAD), and engines
# start (LAUNCH).
PROCESSES, LOAD, LAUNCH = "processes", "load", "launch"
# Parts of a start in which agent-loop workers and reward workers start.
AGENT_LOOP_WORKERS, REWARD_WORKERS = "agent_loop_workers", "reward_workers"
WORKERS = (AGENT_LOOP_WORKERS, REWARD_WORKERS)
STARTING = (CHECKS, RAY, TASK_RUNNER, DATA, CHECKPOINT, PROCESSES, LOAD, LAUNCH, *WORKERS)
# Events in which a policy's training processes compute.
TRAINING = (LOG_PROBS, UPDATE)
# Events whose seconds are metrics of the step.
TIMED = (SAMPLE, ABORT, SLEEP, WAKE, RESUME)
# Spans of an engine are drawn as one span if the pause between them is at most this many seconds.
BRIEF = 0.02


@dataclass(frozen=True)
class TimelineEvent:
    event: str
    step: int
    begin: float
    end: float
    policy: str = ""
    pool: str = ""

    @property
    def seconds(self) -> float:
        return self.end - self.begin

    @property
    def row(self) -> str:
        """Name of the row in which the event is drawn. Each engine and each trainer has its own row."""
        if self.event in WORKERS:
            return self.event.replace("_", " ")
        return f"{'engine' if self.event in (ENGINE, LAUNCH) else 'trainer'} {self.policy}".strip()

    def trace(self) -> dict[str, object]:
        """Convert to a Trace Event, in microseconds."""
        moment = self.event in (START, STEP)
        begin = round(self.begin * 1e6)
        long = {"ph": "i", "s": "g"} if moment else {"ph": "X", "dur": round(self.end * 1e6) - begin}
        place = {"pid": self.pool or "team", "tid": self.row}
        args = {"step": self.step, "policy": self.policy, "pool": self.pool}
        return {"name": self.event, "ts": begin, **long, **place, "args": args}

    @classmethod
    def of(cls, trace: Mapping[str, Any]) -> TimelineEvent:
        begin, args = trace["ts"], trace["args"]
        end = begin + trace.get("dur", 0)
        return cls(trace["name"], args["step"], begin / 1e6, end / 1e6, args["policy"], args["pool"])


class Timeline:
    """Timeline of a run; threads may share it. `pools`: policy -> pool. Without `folder` nothing is written."""

    def __init__(self, folder: Path | None = None, pools: Mapping[str, str] = MappingProxyType({})):
        self._file = None if folder is None else folder / FILE
        self._pools = pools
        self._since: float | None = None
        self._training: dict[str, list[Span]] = defaultdict(list)
        self._seconds: dict[str, float] = defaultdict(float)
        self.step = 0

    def start(self, step: int, times: Sequence[float] = ()) -> None:
        """Write the start of the run. `step`: the first step. `times`: when the command began, when its checks ended
        and when Ray had started."""
        self.step, now = step, clock.now()
        begin = times[0] if times else now
        self._write(TimelineEvent(START, step, begin, begin))
        for part, since, until in zip((CHECKS, RAY, TASK_RUNNER), times, [*times[1:], now], strict=bool(times)):
            self.add(part, since, until)

    def begin(self, step: int) -> None:
        self.step, now = step, clock.now()
        # Metrics cover the time from the first step on, without the start of the run.
        self._since = self._since or now
        self._write(TimelineEvent(STEP, step, now, now))

    def add(self, event: str, begin: float, end: float, policy: str = "") -> None:
        self._write(TimelineEvent(event, self.step, begin, max(begin, end), policy, self._pools.get(policy, "")))

    @contextmanager
    def span(self, event: str, policy: str = "") -> Iterator[None]:
        """Time the enclosed block and write it as an event."""
        begin = clock.now()
        yield
        end = clock.now()
        self.add(event, begin, end, policy)
        if self._since is None:
            return
        self._seconds[event] += end - begin
        if event in TRAINING:
            self._training[policy].append((begin, end))

    def sampled(self, busy: Mapping[str, Sequence[Span]]) -> dict[str, float]:
        """Return metrics of the time since the last call. `busy`: policy -> spans in which its engines had requests."""
        now = clock.now()
        window = (now if self._since is None else self._since, now)
        for policy, spans in busy.items():
            for begin, end in merge_spans(spans, BRIEF):
                self.add(ENGINE, begin, end, policy)
        metrics = {f"async/seconds/{event}": self._seconds[event] for event in TIMED if event in self._seconds}
        if now > window[0]:
            for kind, of_policies in (("engine", busy), ("trainer", self._training)):
                for name, spans in of_policies.items():
                    metrics[metric_names.policy(name, f"idle/{kind}")] = idle(spans, window)
        self._since = now
        self._training.clear()
        self._seconds.clear()
        return metrics

    def _write(self, event: TimelineEvent) -> None:
        if self._file is None:
            return
        with recording(self._file, "its timeline, 3 kB per step,"):
            if event.event == START:
                _open(self._file)
            append_line(self._file, f"{json.dumps(event.trace())},")


def _open(file: Path) -> None:
    """Begin the JSON array, or remove the incomplete last line of a process that was killed."""
    if not file.exists():
        append_line(file, "[")
        return
    with file.open("rb+") as opened:
        opened.truncate(opened.read().rfind(b"\n") + 1)


def start_seconds(events: Sequence[TimelineEvent]) -> dict[str, float]:
    """Return the seconds of each part of the last start; some parts overlap.

    `to_step_N` is the time from the beginning of the start to the first step, which has the number N.
    """
    place = max((place for place, event in enumerate(events) if event.event == START), default=len(events))
    of_start = sorted(events[place:], key=lambda event: event.begin)
    first = next((event for event in of_start if event.event == STEP), None)
    end = first.begin if first else clock.now()
    seconds: dict[str, float] = defaultdict(float)
    for event in of_start:
        if event.event in STARTING or (event.event in (WAKE, VALIDATE) and event.end <= end):
            seconds[f"{event.event} {event.policy}".strip()] += event.seconds
    if seconds and first:
        seconds[f"to_step_{first.step}"] = end - of_start[0].begin
    return dict(seconds)


def idle(spans: Sequence[Span], window: Span) -> float:
    """The share of the window outside the spans."""
    return 1 - seconds(spans, window) / (window[1] - window[0])


def read_timeline(run: Path) -> list[TimelineEvent]:
    """Read the events of a run. `run`: the run's folder, or the file itself.

    If steps were repeated after a resume, only the events of the repetition are returned.
    """
    file = run / FILE if run.is_dir() else run
    if not file.is_file():
        value = f"{file} is not a file"
        rule = f"a training run writes {FILE} into trainer.default_local_dir"
        fix = "give that folder; an evaluation has no timeline"
        raise DataError(value, rule=rule, fix=fix)
    events: list[TimelineEvent] = []
    for index, line in enumerate(file.read_text(encoding="utf-8").splitlines()):
        try:
            event = TimelineEvent.of(json.loads(line.rstrip(",")))
        except (ValueError, TypeError, KeyError):
            # `[` opens the array. A process that is killed leaves at most a part of its last line.
            if line == "[" or (index and line.startswith("{")):
                continue
            value, rule = f"{file}, line {index + 1}: {line[:80]!r}", "every line is an event of a run, as JSON"
            raise DataError(value, rule=rule, fix=f"give the {FILE} of a run") from None
        if event.event == START:
            events = [earlier for earlier in events if earlier.step < event.step]
        events.append(event)
    return events
