"""Imported by every process of a run (VERL_USE_EXTERNAL_MODULES): logs what the process and its card hold, twenty times
a second.

NVML names processes by the host's ids, which a container cannot match with its own; torch's allocator is asked inside.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from bisect import bisect_left
from collections.abc import Awaitable, Callable
from dataclasses import asdict, dataclass
from functools import wraps
from itertools import pairwise
from pathlib import Path

FOLDER = "GPU_PROOF_MEMORY"
PERIOD = 0.05
UPDATE, ENGINE = "update_actor", "TransformersServer"
# Part of Ray's title of a training process -> the phase of `verl-mas plan`.
SYNC = "update_weights"
METHODS = {UPDATE: "update", "log_prob": "log-probs", SYNC: "weight sync"}
# verl's method of a weight sync also wakes the KV cache, as its last action: the card is then that of a rollout.
KV_CACHE = "kv_cache"
_kv_cache_wakes = threading.Event()


@dataclass(frozen=True)
class Sample:
    time: float
    process: int
    title: str
    """Ray's, which names the actor's class and the method that runs."""
    held: int
    """Bytes of torch's allocator on the GPU."""
    card: int = 0
    """Bytes of the GPU that all processes have taken together; 0 where this one does not use it."""


def read(folder: Path) -> list[Sample]:
    lines = [line for file in sorted(folder.glob("*.jsonl")) for line in file.read_text().splitlines()]
    # The last line of a process that was ended may be cut off.
    return sorted((Sample(**json.loads(line)) for line in lines if line.endswith("}")), key=lambda sample: sample.time)


def held_while_waiting(samples: list[Sample]) -> dict[int, tuple[int, int]]:
    """Per training process: the most that it held, and the most while another one updated its policy.

    An update is what is between two samples of it: beside its ends, the last sample of another process may be older.
    """
    by_process: dict[int, list[Sample]] = {}
    for sample in samples:
        by_process.setdefault(sample.process, []).append(sample)
    trainers = {name: own for name, own in by_process.items() if any(UPDATE in sample.title for sample in own)}
    updates = [
        (name, first.time, last.time)
        for name, own in trainers.items()
        for first, last in pairwise(own)
        if UPDATE in first.title and UPDATE in last.title
    ]

    def waits(sample: Sample) -> bool:
        return any(other != sample.process and first <= sample.time <= last for other, first, last in updates)

    return {
        name: (max(s.held for s in own), max((s.held for s in own if waits(s)), default=0))
        for name, own in trainers.items()
    }


def engines(samples: list[Sample]) -> dict[int, int]:
    """Return the peak memory of each engine."""
    peak: dict[int, int] = {}
    for sample in samples:
        if ENGINE in sample.title:
            peak[sample.process] = max(peak.get(sample.process, 0), sample.held)
    return peak


def most_by_phase(samples: list[Sample]) -> dict[str, int]:
    """Phase of `verl-mas plan` -> the most that the card held. Where no training process works, engines start before
    the first weight sync, and sample after it; a sample beside the begin or end of other work belongs to neither."""
    found: dict[str, int] = {}
    working = [(sample.time, phase) for sample in samples if (phase := _phase(sample.title))]
    times = [time for time, _ in working]
    synced = next((time for time, phase in working if phase == METHODS[SYNC]), float("inf"))
    for sample in samples:
        phase = _phase(sample.title)
        if phase is None:
            near = bisect_left(times, sample.time - 2 * PERIOD)
            if near < len(times) and times[near] <= sample.time + 2 * PERIOD:
                continue
            phase = "rollout" if sample.time > synced else "engine start"
        found[phase] = max(found.get(phase, 0), sample.card)
    return found


def _phase(title: str) -> str | None:
    return next((phase for method, phase in METHODS.items() if method in title), None)


def _watch(folder: Path) -> None:
    with (folder / f"{os.getpid()}.jsonl").open("a") as out:
        while True:
            _watch_engines()
            sample = Sample(time.time(), os.getpid(), _title(), *_held())
            out.write(json.dumps(asdict(sample)) + "\n")
            out.flush()
            time.sleep(PERIOD)


def _title() -> str:
    title = Path("/proc/self/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()
    if SYNC not in title:
        _kv_cache_wakes.clear()
    return KV_CACHE if _kv_cache_wakes.is_set() else title


def _watch_engines() -> None:
    base = getattr(sys.modules.get("verl.workers.rollout.base"), "BaseRollout", None)
    for adapter in base.__subclasses__() if base else ():
        if not hasattr(adapter.resume, "__wrapped__"):
            adapter.resume = _watched(adapter.resume)


def _watched(resume: Callable[..., Awaitable[None]]) -> Callable[..., Awaitable[None]]:
    @wraps(resume)
    async def watched(self: object, tags: list[str]) -> None:
        if KV_CACHE in tags:
            _kv_cache_wakes.set()
        await resume(self, tags)

    return watched


def _held() -> tuple[int, int]:
    cuda = getattr(sys.modules.get("torch"), "cuda", None)
    if cuda is None or not cuda.is_initialized():
        return 0, 0
    free, total = cuda.mem_get_info()
    return int(cuda.memory_reserved()), total - free


if FOLDER in os.environ:
    threading.Thread(target=_watch, args=[Path(os.environ[FOLDER])], daemon=True).start()
