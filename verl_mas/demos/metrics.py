"""Reads the metrics of verl's `file` logger: one JSON line per step."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Step:
    number: int
    values: dict[str, float]


def read_steps(file: Path) -> list[Step]:
    return list(_parse(file.read_text())) if file.exists() else []


def _parse(text: str) -> Iterator[Step]:
    # The last line may be incomplete while the run is writing it.
    for line in text[: text.rfind("\n") + 1].splitlines():
        record = json.loads(line)
        yield Step(record["step"], record["data"])


def series(steps: list[Step], key: str) -> tuple[list[int], list[float]]:
    """The steps at which `key` was logged, and its values there."""
    points = [(step.number, step.values[key]) for step in steps if key in step.values]
    return [number for number, _ in points], [value for _, value in points]
