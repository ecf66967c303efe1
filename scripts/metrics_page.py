"""The metrics of docs/use/metrics.md: the page describes every metric that a run logs."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cache, cached_property
from pathlib import Path

PAGE = Path(__file__).parents[1] / "docs" / "use" / "metrics.md"
# Names of data sources and of reported numbers may contain a slash.
_PLACEHOLDERS = {"source": ".+?", "name": ".+?", "n": r"\d+", "k": r"\d+", "s": r"\d+"}
_TOKEN = re.compile(r"<(\w+)>|\{([^}]*)\}|([^<{]+)")
_ROW = re.compile(r"^\| `([^`]+)` \|", re.MULTILINE)
_WATCH, _OF_ACTOR, _VALIDATION = "The ten to watch", "Policies: verl's metrics of an actor", "Validation"
# A validation logs these metrics of agents and sessions as well, with `val-` before their names.
_REPEATED = ("val-agent/", "val-session/")


@dataclass(frozen=True)
class Metric:
    """A row of the page. `pattern`: the metric's name, where `<agent>` stands for any name, and `{a,b}` for either `a`
    or `b`."""

    pattern: str
    section: str
    place: int  # the row's index in the page
    watch: bool  # whether it is one of the ten to watch

    @property
    def of_actor(self) -> bool:
        """Whether verl logs the metric for an actor. With several trained policies, its name is
        `policy/<policy>/...`."""
        return self.section == _OF_ACTOR

    @cached_property
    def expression(self) -> re.Pattern[str]:
        found = "(?:policy/[^/]+/)?" if self.of_actor else ""
        for name, choices, plain in _TOKEN.findall(self.pattern):
            text = f"(?:{'|'.join(map(re.escape, choices.split(',')))})" if choices else re.escape(plain)
            found += _PLACEHOLDERS.get(name, "[^/]+") if name else text
        return re.compile(found)


def _metrics() -> Iterator[Metric]:
    sections = dict(part.split("\n", 1) for part in PAGE.read_text(encoding="utf-8").split("\n## ")[1:])
    watched = _ROW.findall(sections.pop(_WATCH))
    rows = [(pattern, section) for section, text in sections.items() for pattern in _ROW.findall(text)]
    for place, (pattern, section) in enumerate(rows):
        yield Metric(pattern, section, place, pattern in watched)


METRICS = tuple(_metrics())
SECTIONS = tuple(dict.fromkeys(metric.section for metric in METRICS))


@cache
def described(key: str) -> Metric | None:
    """Return the row for a metric, the first one that fits; None if neither verl nor verl-mas logs it."""
    found = next((metric for metric in METRICS if metric.expression.fullmatch(key)), None)
    if found is None and key.startswith(_REPEATED) and (same := described(key.removeprefix("val-"))):
        return replace(same, pattern=f"val-{same.pattern}", section=_VALIDATION, watch=False)
    return found
