"""Write the generated pages: `python scripts/generate_pages.py`. Afterwards `git diff` shows the changes.

`tests/docs/test_generated.py` fails if a page in the repository differs from its generated text.
"""

from __future__ import annotations

import sys
from pathlib import Path

from pages import api, badges, cli, contributing, entry_points, figures, gallery, settings

ROOT = Path(__file__).parents[1]
PAGES = {
    "CONTRIBUTING.md": contributing.page,
    "docs/train/settings.md": settings.page,
    "docs/start/cli.md": cli.page,
    "docs/write/api.md": api.page,
    "recipes/README.md": gallery.page,
    "docs/start/images/architecture.svg": figures.page_architecture,
    "docs/train/images/groups.svg": figures.page_groups,
    **badges.BADGES,
}

if __name__ == "__main__":
    if problem := entry_points.stale(ROOT):
        sys.exit(problem)
    for name, page in PAGES.items():
        (ROOT / name).parent.mkdir(exist_ok=True)
        (ROOT / name).write_text(page(ROOT))
