"""The rules between settings in `docs/errors.md`, from the docstrings of `verl_mas.checks.rules`."""

from __future__ import annotations

from itertools import groupby
from pathlib import Path

from pages.markdown import plain
from verl_mas.checks.rules import every_rule

BEGIN, END = "<!-- rules -->\n", "<!-- end of rules -->\n"


def page(root: Path) -> str:
    """A paragraph per module: a message names the rest."""
    before, rest = (root / "docs/errors.md").read_text(encoding="utf-8").split(BEGIN)
    _, after = rest.split(END)
    rules = sorted((rule.check.__module__.rpartition(".")[2], rule.says) for rule in every_rule().values())
    topics = groupby(rules, key=lambda rule: rule[0])
    texts = (f"- **{topic}**: {plain(' '.join(says for _, says in of_topic))}\n" for topic, of_topic in topics)
    return f"{before}{BEGIN}{''.join(texts)}{END}{after}"
