"""Build the documentation's site: `make docs`.

The site has the Markdown pages of the repository at the same paths, so their relative links work on GitHub and on the
site. The pages are copied to build/pages, and links to files outside the site lead to the repository. Zensical can
build the site from the same mkdocs.yml.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
OUT = ROOT / "build"
REPOSITORY = "https://github.com/verl-mas/verl-mas"
PAGES = (
    "README.md",
    "CHANGELOG.md",
    "CONTRIBUTING.md",
    "docs/**/*.md",
    "recipes/**/README.md",
    "patches/*.md",
    "benchmarks/*.md",
)
OTHERS = (
    "docs/site.css",
    "docs/*/images/*",
    "recipes/*/*.png",
    "benchmarks/*.png",
    "benchmarks/evidence/figures/*.png",
)
LINK = re.compile(r"(\]\()([^)\s]+)(\))")
FENCE = re.compile(r"(^```.*?^```$)", re.MULTILINE | re.DOTALL)
LOADED = re.compile(
    r"""<(?:script|img|iframe|link)\b[^>]*?\b(?:src|href)=["']?((?:https?:)?//[^"'\s>]+)|(@import[^;]*//[^;]*)"""
)


def files(patterns: tuple[str, ...]) -> list[Path]:
    """Return the files that match the patterns, relative to the repository."""
    return sorted({file.relative_to(ROOT) for pattern in patterns for file in ROOT.glob(pattern)})


def staged(page: Path, known: set[Path]) -> str:
    """Return the text of the page for the site. A link to a file that the site lacks leads to the repository."""

    def target(match: re.Match[str]) -> str:
        path, _, anchor = match[2].partition("#")
        if not path or "://" in path:
            return match[0]
        file = Path(os.path.normpath(page.parent / path))
        if file in known:
            return match[0]
        kind = "tree" if (ROOT / file).is_dir() else "blob"
        return f"{match[1]}{REPOSITORY}/{kind}/main/{file}{'#' + anchor if anchor else ''}{match[3]}"

    parts = FENCE.split((ROOT / page).read_text())
    text = "".join(part if part.startswith("```") else LINK.sub(target, part) for part in parts)
    # MkDocs needs an empty line between a comment and a table; GitHub does not.
    return re.sub(r"^(<!-- .* -->)\n(?=\S)", r"\1\n\n", text, flags=re.MULTILINE)


def stage(folder: Path) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    pages, others = files(PAGES), files(OTHERS)
    known = {*pages, *others}
    for page in pages:
        (folder / page).parent.mkdir(parents=True, exist_ok=True)
        (folder / page).write_text(staged(page, known))
    for other in others:
        (folder / other).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(ROOT / other, folder / other)


def loaded_from_elsewhere(site: Path) -> Iterator[str]:
    """Yield addresses that a browser would load from the network to show a page."""
    for file in sorted((*site.rglob("*.html"), *site.rglob("*.css"))):
        for match in LOADED.finditer(file.read_text()):
            if 'rel="canonical"' not in match[0]:
                yield f"{file.relative_to(site)}: {match[1] or match[2]}"


def main() -> int:
    stage(OUT / "pages")
    # Do not pass --quiet, because it also hides warnings from --strict.
    build = [sys.executable, "-m", "mkdocs", "build", "--strict", "--config-file", "docs/mkdocs.yml"]
    # Without this variable the theme prints an announcement.
    environment = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    if code := subprocess.run(build, cwd=ROOT, env=environment, check=False).returncode:
        return code
    found = list(loaded_from_elsewhere(OUT / "site"))
    if found:
        sys.stderr.write("\n".join(["the site loads files from the network:", *found, ""]))
        return 1
    sys.stdout.write(f"{OUT / 'site' / 'index.html'}\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
