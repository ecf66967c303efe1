"""The rules between settings in `docs/errors.md`, from the docstrings of `verl_mas.checks.rules`."""

from __future__ import annotations

from pathlib import Path

from pages.markdown import cell, table
from verl_mas.checks.rules import every_rule

BEGIN, END = "<!-- rules -->\n", "<!-- end of rules -->\n"
OF = {None: "any run", True: "teams", False: "runs without a team"}


def page(root: Path) -> str:
    before, rest = (root / "docs/errors.md").read_text(encoding="utf-8").split(BEGIN)
    _, after = rest.split(END)
    rules = sorted(every_rule().values(), key=lambda rule: rule.check.__module__)
    rows = ((f"`{rule.name}`", cell(rule.says), OF[rule.team]) for rule in rules)
    return f"{before}{BEGIN}{table(('rule', 'what it says', 'of'), rows)}\n{END}{after}"
