"""Every metric that a run logs, with its meaning, from `table.yaml`. `python scripts/generate_pages.py` makes
docs/use/metrics.md from it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cache, cached_property
from pathlib import Path

from verl_mas.util import read_yaml
from verl_mas.verl_.types import Fields

# Names of data sources and of reported numbers may contain a slash.
_PLACEHOLDERS = {"source": ".+?", "name": ".+?", "n": r"\d+", "k": r"\d+", "s": r"\d+"}
_TOKEN = re.compile(r"<(\w+)>|\{([^}]*)\}|([^<{]+)")


@dataclass(frozen=True)
class Metric:
    """A metric. `pattern`: its name, where `<agent>` stands for any name, and `{a,b}` for either `a` or `b`."""

    pattern: str
    meaning: str
    unit: str = ""
    watch: str = ""  # the healthy values of a metric to watch; empty for other metrics
    # Whether verl logs the metric for an actor. With several trained policies, its name is `policy/<policy>/...`.
    of_actor: bool = False

    @property
    def names(self) -> tuple[str, ...]:
        return (self.pattern, f"policy/<policy>/{self.pattern}") if self.of_actor else (self.pattern,)

    @cached_property
    def expression(self) -> re.Pattern[str]:
        found = "(?:policy/[^/]+/)?" if self.of_actor else ""
        for name, choices, plain in _TOKEN.findall(self.pattern):
            text = f"(?:{'|'.join(map(re.escape, choices.split(',')))})" if choices else re.escape(plain)
            found += _PLACEHOLDERS.get(name, "[^/]+") if name else text
        return re.compile(found)


@dataclass(frozen=True)
class MetricSection:
    title: str
    about: str
    metrics: tuple[Metric, ...]


def _sections() -> Iterator[MetricSection]:
    sections = read_yaml(Path(__file__).with_suffix(".yaml"))
    for title, section in sections.items():
        metrics = list(_metrics_of(section))
        if title == "Validation":
            metrics += _validated(_metrics_of(sections["Agents"]))
            metrics += _validated(_metrics_of(sections["Sessions"]))
        yield MetricSection(title, section["about"], tuple(metrics))


def _metrics_of(section: Fields) -> Iterator[Metric]:
    for pattern, entry in section["metrics"].items():
        columns = [entry] if isinstance(entry, str) else entry
        yield replace(Metric(pattern, *columns), of_actor=section.get("of_actor", False))


def _validated(metrics: Iterator[Metric]) -> Iterator[Metric]:
    """Yield the metrics that a validation logs as well, with `val-` before their names."""
    without = re.compile("^advantage/|/advantage/|/group/|mixed_versions|<name>/mean")
    for metric in metrics:
        if not without.search(metric.pattern):
            yield replace(metric, pattern=f"val-{metric.pattern}", watch="")


SECTIONS = tuple(_sections())
METRICS = tuple(metric for section in SECTIONS for metric in section.metrics)
TO_WATCH = tuple(metric for metric in METRICS if metric.watch)


@cache
def described(key: str) -> Metric | None:
    """Return the entry for a metric; None if neither verl nor verl-mas logs it."""
    return next((metric for metric in METRICS if metric.expression.fullmatch(key)), None)
