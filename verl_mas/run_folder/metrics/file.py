"""Metrics of a run in its folder, whatever its loggers are: one JSON line per step.

<trainer.default_local_dir>/metrics.jsonl           {"step": 3, "time": 1764000000.0, "metrics": {...}}
<trainer.default_local_dir>/metrics.dropped.jsonl   lines of steps that a run repeats after a resume or a restart

A step may have two lines: a resumed run logs the validation before its first step under the step of its checkpoint.
Values that are not finite are null in the file.
"""

import json
import math
import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import SupportsFloat

from verl_mas.errors import DataError
from verl_mas.run_folder.disk import append_line, recording, write_whole

FILE = "metrics.jsonl"
DROPPED = "metrics.dropped.jsonl"
METRICS = "metrics"
RECORDED = "its metrics, some 10 kB per step,"
LOGGER, VERLS = "file", "data"  # name of verl's logger for JSON lines, and the key that it writes instead of METRICS


@dataclass(frozen=True)
class Step:
    number: int
    values: dict[str, float]


class MetricsFile:
    """Writes metrics in the trainer's process. A run that resumes moves the lines after its checkpoint to another
    file."""

    def __init__(self, folder: Path, resumed: int | None = None):
        """Open the file. `resumed`: the step of the checkpoint; None for a run that starts from scratch."""
        self.path = folder / FILE
        self.last = resumed  # the last logged step
        self.values: dict[str, float] = {}  # the latest value of each metric
        if self.path.exists():
            with recording(self.path, RECORDED):
                text = self.path.read_text(encoding="utf-8", errors="replace")
                kept, dropped = split(text, -1 if resumed is None else resumed)
                if dropped:
                    append_line(self.path.with_name(DROPPED), "\n".join(dropped))
                write_whole(self.path, "".join(f"{line}\n" for line in kept))

    def log(self, data: Mapping[str, object], step: int) -> None:
        """Append one step; same signature as verl's loggers."""
        # Keep numbers of Python, numpy and torch. verl also logs tables and texts, which are skipped here.
        given = {k: float(v) for k, v in data.items() if isinstance(v, SupportsFloat) and not isinstance(v, str)}
        numbers = {key: value if math.isfinite(value) else None for key, value in given.items()}
        with recording(self.path, RECORDED):
            append_line(self.path, json.dumps({"step": step, "time": round(time.time(), 3), METRICS: numbers}))
        self.last = step
        self.values |= {key: value for key, value in numbers.items() if value is not None}


def read_steps(file: Path) -> list[Step]:
    """Read a metrics file, or a file of verl's `file` logger. Returns the steps sorted by number; empty without a file.

    An incomplete last line is skipped, because the run is still writing the line, or was killed while writing it.
    """
    if not file.exists():
        return []
    steps: dict[int, Step] = {}
    # The last part has no line break, so it is incomplete or empty.
    lines = file.read_text(encoding="utf-8", errors="replace").split("\n")[:-1]
    for place, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            record = json.loads(line)
            values = record[METRICS] if METRICS in record else record[VERLS]
            number = record["step"]
            if not isinstance(values, dict) or not isinstance(number, int):
                raise TypeError(record)
            numbers = {key: math.nan if value is None else value for key, value in values.items()}
            read = {key: float(value) for key, value in numbers.items() if isinstance(value, int | float)}
        except (ValueError, TypeError, KeyError):
            rule = f'every line is a step of a run, as {{"step": 3, "time": ..., "{METRICS}": {{...}}}}'
            fix = f"give the folder of a run, or remove the line if something else wrote into {FILE}"
            raise DataError(f"{file}, line {place}: {line[:80]!r}", rule=rule, fix=fix) from None
        # If a step has two lines, the later value counts.
        before = steps[number].values if number in steps else {}
        steps[number] = Step(number, {**before, **read})
    return [steps[number] for number in sorted(steps)]


def series(steps: Sequence[Step], key: str) -> tuple[list[int], list[float]]:
    """Return the numbers of the steps that have a metric, and its values."""
    points = [(step.number, step.values[key]) for step in steps if key in step.values]
    return [number for number, _ in points], [value for _, value in points]


def file_of_verl(project: str, experiment: str) -> Path:
    """Return the path to which verl's logger `file` writes."""
    given = os.environ.get("VERL_FILE_LOGGER_PATH")
    root = os.path.expanduser(os.environ.get("VERL_FILE_LOGGER_ROOT", "."))
    return Path(given or os.path.join(root, project, f"{experiment}.jsonl"))


def split(text: str, until: float) -> tuple[list[str], list[str]]:
    """Split the complete lines of a metrics file into two lists: the lines of steps up to `until`, and all others."""
    kept: list[str] = []
    dropped: list[str] = []
    for line in text.split("\n")[:-1]:
        try:
            earlier = bool(json.loads(line)["step"] <= until)
        except (ValueError, TypeError, KeyError):
            earlier = False
        (kept if earlier else dropped).append(line)
    return kept, dropped
