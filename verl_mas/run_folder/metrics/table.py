"""Every metric that a run logs, with its meaning: the rows of docs/use/metrics.md, to which `metrics.md` is a link."""

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cache, cached_property
from pathlib import Path

# Names of data sources (`<source>`) and of numbers that a workflow or scorer reports (`<name>`) may contain a slash.
_PLACEHOLDERS = {"source": ".+?", "name": ".+?", "n": r"\d+", "k": r"\d+", "s": r"\d+"}
_TOKEN = re.compile(r"<(\w+)>|\{([^}]*)\}|([^<{]+)")
_ROW = re.compile(r"^\| `([^`]+)` \| (.*?) \|", re.MULTILINE)
_WATCH, _OF_ACTOR, _VALIDATION = "The ten to watch", "Policies: verl's metrics of an actor", "Validation"
# A validation logs these metrics of agents and sessions as well, with `val-` before their names.
_REPEATED = ("val-agent/", "val-session/")


@dataclass(frozen=True)
class Metric:
    """A row of docs/use/metrics.md. `pattern`: the metric's name, where `<agent>` stands for any name, and `{a,b}` for
    either `a` or `b`."""

    pattern: str
    meaning: str
    section: str
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
    page = Path(__file__).with_name("metrics.md").read_text(encoding="utf-8")
    sections = {title: _ROW.findall(text) for title, _, text in (part.partition("\n") for part in page.split("\n## "))}
    watched = dict(sections.pop(_WATCH))
    for section, rows in sections.items():
        yield from (Metric(pattern, meaning, section, pattern in watched) for pattern, meaning in rows)


METRICS = tuple(_metrics())
SECTIONS = tuple(dict.fromkeys(metric.section for metric in METRICS))
TO_WATCH = tuple(metric for metric in METRICS if metric.watch)


@cache
def described(key: str) -> Metric | None:
    """Return the first row whose pattern matches a metric; None if neither verl nor verl-mas logs the metric."""
    found = next((metric for metric in METRICS if metric.expression.fullmatch(key)), None)
    if found is None and key.startswith(_REPEATED) and (same := described(key.removeprefix("val-"))):
        return replace(same, pattern=f"val-{same.pattern}", section=_VALIDATION, watch=False)
    return found
