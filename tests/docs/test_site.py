"""The site: its navigation has every page, its links go where GitHub's go, and nothing is loaded from the network."""

import os
import re
from pathlib import Path

import build_site
import pytest
import yaml

ROOT = Path(__file__).parents[2]
PAGES = build_site.files(build_site.PAGES)
# GitHub shows these lines as a list. The site would show them as text of the paragraph above.
LIST_IN_PARAGRAPH = re.compile(r"^(?![-*|#>]|\d+\. |    )\S.*\n(?:[-*] |\d+\. )", re.MULTILINE)


class Settings(yaml.SafeLoader):
    """A loader for mkdocs.yml that skips its tag of a Python function."""


Settings.add_multi_constructor("tag:yaml.org,2002:python/", lambda loader, suffix, node: None)


def named(nav: object) -> list[str]:
    """The pages of a navigation."""
    if isinstance(nav, str):
        return [nav]
    return [page for part in (nav.values() if isinstance(nav, dict) else nav) for page in named(part)]


def test_the_navigation_has_every_page_once():
    settings = yaml.load((ROOT / "docs/mkdocs.yml").read_text(), Loader=Settings)
    assert sorted(named(settings["nav"])) == sorted(map(str, PAGES))


def test_index_and_navigation_have_the_same_sections():
    settings = yaml.load((ROOT / "docs/mkdocs.yml").read_text(), Loader=Settings)
    navigation = {name: named(pages) for part in settings["nav"] for name, pages in part.items()}
    index = (ROOT / "docs/README.md").read_text().partition("## Glossary")[0]
    for section in index.split("\n## ")[1:]:
        name, _, text = section.partition("\n")
        links = [os.path.normpath(f"docs/{link}") for link in re.findall(r"\]\(([^)#\s]+\.md)", text)]
        pages = [page for page in links if Path(page) in PAGES and not page.startswith("recipes/")]
        assert [page for page in navigation[name] if page != "docs/README.md"] == pages


@pytest.mark.parametrize("page", PAGES, ids=str)
def test_lists_begin_after_an_empty_line(page):
    text = "".join(build_site.FENCE.split(build_site.staged(page, set(PAGES)))[::2])
    assert LIST_IN_PARAGRAPH.findall(text) == []


def test_links_between_pages_stay_and_others_go_to_the_repository(tmp_path, monkeypatch):
    monkeypatch.setattr(build_site, "ROOT", tmp_path)
    (tmp_path / "docs").mkdir()
    page = "[b](b.md#x) [code](../src/c.py) [web](https://x.org) [here](#y)\n```\n[k](../no.py)\n```\n"
    (tmp_path / "docs/a.md").write_text(page)
    text = build_site.staged(Path("docs/a.md"), {Path("docs/b.md")})
    code = f"[code]({build_site.REPOSITORY}/blob/main/src/c.py)"
    for link in ("[b](b.md#x)", code, "[web](https://x.org) [here](#y)", "[k](../no.py)"):
        assert link in text


def test_what_a_browser_would_load_from_the_network_is_found(tmp_path):
    page = '<a href="https://x.org">link</a><img src="y.png"><script src=https://x.org/z.js></script>'
    (tmp_path / "a.html").write_text(page)
    assert list(build_site.loaded_from_elsewhere(tmp_path)) == ["a.html: https://x.org/z.js"]
