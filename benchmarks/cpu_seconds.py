"""Add the CPU seconds that all processes of a run together spend in each phase of a step to verl's metrics.

verl loads this module (VERL_USE_EXTERNAL_MODULES). Other programs on the same cores change CPU seconds less than
elapsed seconds.
"""

from __future__ import annotations

from collections.abc import Iterator
from types import ModuleType

import psutil
from wrapt import register_post_import_hook

PREFIX = "cpu/"  # precedes the name of a phase; verl logs the metric as timing_s/cpu/<phase>


def spent() -> float:
    """Return the CPU seconds that all of this run's Ray processes on this machine have used so far."""
    seconds = 0.0
    for process in psutil.Process().parent().children():
        try:
            times = process.cpu_times()
        except psutil.NoSuchProcess:
            continue
        seconds += times.user + times.system
    return seconds


def _with_cpu_seconds(module: ModuleType) -> None:
    timer = module._timer  # noqa: SLF001  # verl's

    def timed(name: str, timing_raw: dict[str, float]) -> Iterator[None]:
        before = spent()
        yield from timer(name, timing_raw)
        timing_raw[PREFIX + name] = timing_raw.get(PREFIX + name, 0.0) + spent() - before

    module._timer = timed  # noqa: SLF001


register_post_import_hook(_with_cpu_seconds, "verl.utils.profiler.performance")
