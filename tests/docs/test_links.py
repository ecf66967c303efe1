"""Every link of a page resolves, and every file and command that a page names exists."""

import importlib.util
import pkgutil
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from verl_mas.cli import commands

ROOT = Path(__file__).parents[2]
PATTERNS = ("*.md", "docs/**/*.md", "patches/*.md", "recipes/**/README.md", "benchmarks/*.md")
PAGES = sorted(path for pattern in PATTERNS for path in ROOT.glob(pattern))
CODE = re.compile(r"^```.*?^```$|^    [^\n]*$", re.MULTILINE | re.DOTALL)
TARGETS = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
FOLDERS = [path.name for path in ROOT.iterdir() if path.is_dir() and not path.name.startswith(".")]
FILES = {path.name for folder in (".ci", *FOLDERS) for path in (ROOT / folder).rglob("*.*")}
FILES |= {path.name for path in ROOT.iterdir()}
DOTTED = re.compile(r"(?<![\w/.-])verl_mas(?:\.[A-Za-z_]\w*)+")
GROUPS = {name for path in ROOT.glob("verl_mas/**/*.py") for name in re.findall(r'"(verl_mas\.\w+)"', path.read_text())}
# Files of users and of other projects, and files that runs write.
USERS = r"VERL/|examples/|marti/|my_|pkg://|runs/|teams/|trajectories/|view_data/|(prepare|treasure|test_treasure|ask|gsm8k)\.py|treasure_team"


def broken_links(page: Path) -> Iterator[str]:
    text = CODE.sub("", page.read_text())
    for target in re.findall(r"\]\(([^)\s]+)\)", text):
        if target.startswith(("http://", "https://")):
            continue
        path, _, anchor = target.partition("#")
        file = (page.parent / path).resolve() if path else page
        if not file.exists() or (anchor and anchor not in anchors(file)):
            yield target


def anchors(page: Path) -> set[str]:
    """Return the anchors that GitHub gives to the headings of a page."""
    headings = re.findall(r"^#+ (.*)$", CODE.sub("", page.read_text()), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def missing_names(page: Path) -> Iterator[str]:
    """Yield the files, make targets, subcommands, modules and names that a page's code mentions and that do not
    exist."""
    text = page.read_text()
    code = [*re.findall(r"`([^`\n]+)`", CODE.sub("", text)), *CODE.findall(text)]
    for snippet in code:
        yield from (word for word in paths(snippet) if not exists(word, page))
        yield from (f"make {word}" for word in re.findall(r"^ *make ([a-z-]+)", snippet, re.M) if word not in TARGETS)
        for word in re.findall(r"(?:^|/)\s*verl-mas ([\w-]+)", snippet, re.M):
            if word not in {*commands(), "--help", "--version"}:
                yield f"verl-mas {word}"
        for module in re.findall(r"-m ((?:verl_mas|benchmarks)[\w.]*)", snippet):
            if importlib.util.find_spec(module) is None:
                yield f"python -m {module}"
        yield from (name for name in DOTTED.findall(snippet) if not known(name))


def known(name: str) -> bool:
    """Whether a dotted name is a module, a name in a module, or a group of entry points."""
    try:
        pkgutil.resolve_name(name)
    except (ImportError, AttributeError):
        return name in GROUPS
    return True


def paths(snippet: str) -> list[str]:
    words = re.findall(r"[\w./:<>{}*-]+", snippet)
    folders = "|".join(["verl_mas", *FOLDERS])
    shaped = re.compile(rf"(?:{folders})/[\w./-]*|[\w/-]+/|[\w./-]+\.(?:py|md|sh|toml|diff)")
    return [word for word in words if shaped.fullmatch(word) and not re.match(USERS, word)]


def exists(word: str, page: Path) -> bool:
    """Whether a path exists in the repository, the package or the page's folder. A bare file name may be in any
    folder."""
    return word in FILES or any((folder / word).exists() for folder in (ROOT, ROOT / "verl_mas", page.parent))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_relative_link_resolves_and_a_page_names_only_files_and_commands_that_exist(page):
    # The changelog also names files that were deleted.
    missing = missing_names(page) if page.name != "CHANGELOG.md" else ()
    assert [*broken_links(page), *missing] == []


def test_every_page_is_reached_from_the_index():
    reached, waiting = set(), [ROOT / "docs/README.md"]
    while waiting:
        page = waiting.pop()
        reached.add(page)
        targets = {(page.parent / target).resolve() for target in re.findall(r"\]\(([^)#\s]+)", page.read_text())}
        waiting += (targets & set(PAGES)) - reached
    assert set(PAGES) - reached == set()


def test_the_page_of_the_benchmarks_has_a_line_for_each_script():
    folder = ROOT / "benchmarks"
    scripts = {path.relative_to(folder).parts[0] for path in folder.rglob("*.py")} - {"tests"}
    assert sorted(re.findall(r"^\| `([\w.]+)` \|", (folder / "README.md").read_text(), re.M)) == sorted(scripts)


def test_a_broken_link_and_a_wrong_name_are_found(tmp_path):
    page = tmp_path / "page.md"
    names = ["make nothing", "tests/gone.py", "verl-mas nothing", "verl_mas.gone"]
    page.write_text(f"# A page\n[a](gone.md) [b](#a-page) [c](#gone)\n{', '.join(f'`{name}`' for name in names)}\n")
    assert (list(broken_links(page)), list(missing_names(page))) == (["gone.md", "#gone"], names)
