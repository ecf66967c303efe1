"""Output of `verl-mas check` for a run that can start: a tree of its agents, policies, pools and numbers."""

from collections.abc import Mapping, Sequence
from textwrap import shorten

from rich.text import Text
from rich.tree import Tree

from verl_mas.checks.doctor import Aspect
from verl_mas.checks.report import Summary

LONGEST = 400  # characters of a value, such as a system prompt


def tree(found: Summary, machine: Sequence[Aspect]) -> Tree:
    # Leave out aspects with a problem, because they are listed among the warnings.
    aspects = {one.what: one.seen for one in machine if one.ok is not False}
    values = {name: part for name, part in found.items() if not isinstance(part, Mapping) and name != "workflow"}
    sections = {name: part for name, part in found.items() if isinstance(part, Mapping) and part}
    root = Tree(found["workflow"] or f"no team: mas is not set, so verl's trainer `{found['trainer']}` runs")
    for title, section in {**sections, "run": values}.items():
        branch = root.add(title)
        for name, value in section.items():
            # Names of agents, policies and pools are parts of settings, so they stay as they are.
            label = name if isinstance(value, Mapping) else _words(name)
            if _informative(value):
                branch.add(Text(f"{label}: {_line(value)}"))
    root.add(Text(f"this machine: {', '.join(f'{name} {seen}' for name, seen in aspects.items())}"))
    return root


def _line(value: object) -> str:
    """Format a value, or the parts of a mapping that are not empty."""
    if isinstance(value, list):
        return ", ".join(map(str, value))
    if not isinstance(value, Mapping):
        return f"{value:g}" if isinstance(value, float) else str(value)
    parts = {_words(name): part for name, part in value.items() if _informative(part)}
    texts = {name: shorten(_line(part), LONGEST, placeholder=" ...") for name, part in parts.items()}
    return ", ".join(name if parts[name] is True else f"{name} {text}" for name, text in texts.items())


def _informative(value: object) -> bool:
    return value is not None and value is not False and value not in ("", [], {})


def _words(name: str) -> str:
    return name.replace("_", " ")
