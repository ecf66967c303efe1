"""Generate recipes/README.md, a list of every recipe's variants, from the tables on the recipes' own pages."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

HEAD = """\
# Recipes

A recipe is a whole run: task, team, settings. `+recipe=<name>/<variant>` composes one from any folder; the page of a
recipe has the commands that make its data, what is taken from which paper, and further variants. This page is
generated from those pages (`python scripts/generate_pages.py`).

    verl-mas check +platform=cpu +recipe=math/laptop
    python -m verl.trainer.main_ppo +platform=cpu +recipe=math/laptop    # on a laptop
    python -m verl.trainer.main_ppo +recipe=math/separate                # on GPUs

## On a laptop

Tiny models on the CPU, warmed up on demonstrations, which the first command of each recipe makes. Success is on
held-out tasks, one sampled session each; intervals are 95 %.

- *measured*: run to its end, by us
- *composed*: it passes all checks and has no result yet

| recipe | arguments after `+platform=cpu` | success at the start | at the end | time on 2 cores | status |
|---|---|---|---|---|---|
"""
GPUS = """
## On GPUs

**Rows that are planned have not been run on GPUs by us.** Memory is the worst moment of a step on one GPU, as
`verl-mas plan` estimates it; the tests compare it. Times are the paper's, on H100. Success as published is on the page
of each recipe that a paper's numbers belong to; [how to repeat them](../docs/start/coming-from.md#reproduce-a-paper).

- *composed*: it passes all checks
- *planned*: it also fits, by the estimate
- *run*: by us, on GPUs

| recipe | team | arguments | GPUs | memory per GPU | published time | status |
|---|---|---|---|---|---|---|
"""


def table(*columns: str) -> re.Pattern[str]:
    """Return a pattern that matches a table with these columns. Its group is the rows of the table."""
    return re.compile(rf"^\| {re.escape(' | '.join(columns))} \|\n\|[-|]+\|\n((?:\|.*\n)+)", re.MULTILINE)


TITLE = re.compile(r"^# (.*)$", re.MULTILINE)
LAPTOP = table("laptop variant", "at the start", "at the end", "time on 2 cores", "status")
GPU = table("team", "arguments", "GPUs", "memory per GPU", "published time", "status")


def page(root: Path) -> str:
    recipes = root / "recipes"
    pages = sorted(recipes.glob("*/README.md"))
    return HEAD + "".join(rows(pages, LAPTOP, recipes)) + GPUS + "".join(rows(pages, GPU, recipes))


def rows(pages: list[Path], table: re.Pattern[str], folder: Path) -> Iterator[str]:
    """Yield the rows of each page's tables that match, with a link to the page as the first cell."""
    for page in pages:
        text = page.read_text()
        name = page.parent.relative_to(folder).as_posix()
        for found in table.findall(text):
            for row in found.splitlines():
                yield f"| [{short(text)}]({name}/README.md) {from_here(row, name)}\n"


def short(text: str) -> str:
    """Return the page's title up to its colon."""
    return TITLE.search(text)[1].partition(":")[0]


def from_here(row: str, name: str) -> str:
    """Rewrite the relative links of a page in the subfolder `name`, so that they work from the folder above."""

    def target(match: re.Match[str]) -> str:
        path = match[1]
        if "://" in path:
            return match[0]
        inside = f"{name}/README.md{path}" if path.startswith("#") else f"{name}/{path}"
        return f"]({inside})" if not path.startswith("../") else f"]({path.removeprefix('../')})"

    return re.sub(r"\]\(([^)]+)\)", target, row)
