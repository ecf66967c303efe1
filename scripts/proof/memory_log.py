"""Log the memory that a process and its GPU hold, twenty times a second.

Every process of a run imports this module (VERL_USE_EXTERNAL_MODULES).

NVML reports the process ids of the host, which a container cannot match with its own ids. So each process asks torch's
allocator for its own memory.
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
# METHODS: part of the title that Ray gives a training process -> the phase of `verl-mas plan`.
SYNC = "update_weights"
METHODS = {UPDATE: "update", "log_prob": "log-probs", SYNC: "weight sync"}
# verl's method of a weight sync wakes the KV cache as its last action. From then on, the GPU's memory is counted as
# that of a rollout.
KV_CACHE = "kv_cache"
_kv_cache_wakes = threading.Event()


@dataclass(frozen=True)
class Sample:
    time: float
    process: int
    title: str
    """The process title that Ray sets, with the actor's class and the running method."""
    held: int
    """Bytes of the GPU that torch's allocator has reserved in this process."""
    card: int = 0
    """Bytes of the GPU that all processes use together; 0 if this process does not use the GPU."""


def read(folder: Path) -> list[Sample]:
    lines = [line for file in sorted(folder.glob("*.jsonl")) for line in file.read_text().splitlines()]
    # If a process was killed, its last line may be incomplete.
    return sorted((Sample(**json.loads(line)) for line in lines if line.endswith("}")), key=lambda sample: sample.time)


def held_while_waiting(samples: list[Sample]) -> dict[int, tuple[int, int]]:
    """Return for each training process its peak memory, and its peak while another process updated a policy.

    Only the time between two samples of the same update counts. Near the start and the end of an update, a sample of
    another process may still show an earlier state.
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
    """Return the GPU's peak memory in each phase of `verl-mas plan`.

    While no training process works, the phase is the engines' start until the first weight sync, and the rollout after
    it. A sample close to the work of a training process is skipped.
    """
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
