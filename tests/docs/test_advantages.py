"""The page on advantages names every estimator; the options are in the generated settings."""

from __future__ import annotations

import re
from pathlib import Path

from verl_mas.advantage import ESTIMATORS

PAGE = (Path(__file__).parents[2] / "docs" / "advantages.md").read_text()


def first_column(heading):
    """The names in code in the first cells of the tables of a section."""
    (section,) = re.findall(rf"^## {re.escape(heading)}\n(.*?)(?=^## )", PAGE, re.MULTILINE | re.DOTALL)
    cells = re.findall(r"^\|([^|]*)\|", section, re.MULTILINE)
    return [name for cell in cells for name in re.findall(r"`([^`]+)`", cell)]


def test_the_table_of_estimators_has_all_of_them_once():
    # Pages and benchmarks register further ones.
    shipped = [name for name in ESTIMATORS if ESTIMATORS[name].function.__module__.startswith("verl_mas.")]
    assert sorted(first_column("Estimators")) == sorted(shipped)
