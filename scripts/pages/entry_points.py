"""Check that the installed metadata has all entry points, because pages list teams, data sets and demos by them."""

from __future__ import annotations

import re
from importlib.metadata import distribution
from pathlib import Path


def stale(root: Path) -> str | None:
    """Return an error with its fix if the metadata lacks an entry point of pyproject.toml."""
    written = re.findall(r'^([\w-]+) = "(verl_mas[\w.:]+)"$', (root / "pyproject.toml").read_text(), re.MULTILINE)
    missing = set(written) - {(point.name, point.value) for point in distribution("verl-mas").entry_points}
    if not missing:
        return None
    return (
        "entry points of pyproject.toml are not in the package's metadata: "
        f"{', '.join(sorted(name for name, _ in missing))}; fix: pip install -e . --no-deps"
    )
