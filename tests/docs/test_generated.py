"""Generated pages equal the output of `python scripts/generate_pages.py`, and lists in other pages are complete."""

import re
from pathlib import Path

import pytest
from generate_pages import PAGES
from pages.entry_points import stale

from verl_mas.advantage import ESTIMATORS

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("name", PAGES)
def test_a_generated_page_is_up_to_date(name):
    assert (ROOT / name).read_text() == PAGES[name](ROOT), "fix: python scripts/generate_pages.py"


def test_an_entry_point_that_the_metadata_lacks_is_named_with_the_fix(tmp_path):
    (tmp_path / "pyproject.toml").write_text('single = "verl_mas.elsewhere"\nverl-mas = "verl_mas.cli:main"\n')
    assert "metadata: single; fix: pip install -e ." in stale(tmp_path)


def test_the_gallery_has_every_recipe_once():
    gallery = (ROOT / "recipes/README.md").read_text().partition("## On a laptop")[2]
    listed = re.findall(r"`[^`]*\+recipe=(\S+?)[` ]", gallery)
    runs = {str(file.relative_to(ROOT / "recipes").with_suffix("")) for file in ROOT.glob("recipes/*/*.yaml")}
    shared = {run for run in runs if run.partition("/")[2] in ("common", "roles")}
    # The first run has no team.
    assert set(listed) == runs - shared - {"first_run/laptop"}


def test_the_settings_have_each_path_once():
    of_agents = (ROOT / "docs/train/settings.md").read_text().partition("## `mas.policies`")[0]
    rows = re.findall(r"^\| `(<name>\.[^`]+)` \|", of_agents, re.M)
    assert "<name>.sampling.temperature" in rows and len(rows) == len(set(rows))


def test_the_table_of_estimators_has_all_of_them_once():
    page = (ROOT / "docs/train/advantages.md").read_text()
    (section,) = re.findall(r"^## Estimators\n(.*?)(?=^## )", page, re.MULTILINE | re.DOTALL)
    cells = re.findall(r"^\|([^|]*)\|", section, re.MULTILINE)
    # Pages and benchmarks register estimators of their own.
    shipped = [name for name in ESTIMATORS if ESTIMATORS[name].function.__module__.startswith("verl_mas.")]
    assert sorted(name for cell in cells for name in re.findall(r"`([^`]+)`", cell)) == sorted(shipped)
