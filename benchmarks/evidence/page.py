"""Generate the tables and figures of EVIDENCE.md from the results. The text around them is written by hand."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path

from benchmarks.evidence.claims import claims_table
from benchmarks.evidence.matrix import TASKS, pieces
from benchmarks.evidence.tables import FIGURES, Results, curves, learning, signals
from benchmarks.evidence.tasks import plan_path_tables


def write(page: Path, results: Results) -> None:
    """Draw the figures, and replace the text between `<!-- name -->` and `<!-- /name -->` for each section."""
    text = page.read_text()
    for name, content in sections(results, page.parent / FIGURES).items():
        text = between(text, name, content)
    page.write_text(text)


def sections(results: Results, figures: Path) -> dict[str, str]:
    """Return the text of each section: a table and a figure per group. Plan-Path's older groups have other tables."""
    found = {"claims": claims_table(results, ((task.title, task.claims) for task in TASKS.values()))}
    found |= plan_path_tables.sections(results, figures)
    for task in TASKS.values():
        for group in task.groups:
            if group.name not in found:
                drawn = curves(results, group.arms, figures / f"{group.name}.png")
                found[group.name] = learning(results, group.arms, group.arms[0].name, group.controls) + drawn
                found |= {f"{group.name}_signals": signals(results, group.arms)} if group.signals else {}
    return {**found, "left": left(results)}


def between(text: str, name: str, content: str) -> str:
    before, start, rest = text.partition(f"<!-- {name} -->\n")
    _, end, after = rest.partition(f"<!-- /{name} -->")
    if not end:
        raise ValueError(f"the page has no <!-- {name} --> ... <!-- /{name} -->")
    return f"{before}{start}{content}\n{end}{after}"


def left(results: Results) -> str:
    missing: dict[str, list[str]] = defaultdict(list)
    for piece in pieces():
        if piece.seed not in results.runs.get(piece.arm.name, {}):
            missing[piece.arm.name].append(str(piece.seed))
    if not missing:
        return "Everything has run."
    return "\n".join(f"- `{arm}`: seeds {', '.join(seeds)}" for arm, seeds in missing.items())
