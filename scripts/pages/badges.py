"""The badges of README.md. Their values come from pyproject.toml, so the badges are never out of date."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from functools import partial
from html import escape
from pathlib import Path

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

LETTER, MARGIN = 6.6, 7  # Widths in pixels of a letter, and of the margin on each side of a string


def badge(label: str, value: str) -> str:
    left, right = (round(len(text) * LETTER + 2 * MARGIN) for text in (label, value))
    about = escape(f"{label}: {value}")
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{left + right}" height="20" role="img" aria-label="{about}">\n'
        f'<rect width="{left + right}" height="20" rx="3" fill="#4f5bd5"/>\n'
        f'<path d="M3 0H{left}V20H3A3 3 0 0 1 0 17V3A3 3 0 0 1 3 0" fill="#444c56"/>\n'
        '<g fill="#fff" font-family="Verdana,DejaVu Sans,sans-serif" font-size="11">\n'
        f'<text x="{MARGIN}" y="14" textLength="{left - 2 * MARGIN}">{escape(label)}</text>\n'
        f'<text x="{left + MARGIN}" y="14" textLength="{right - 2 * MARGIN}">{escape(value)}</text>\n</g>\n</svg>\n'
    )


def drawn(name: str, root: Path) -> str:
    project = tomllib.loads((root / "pyproject.toml").read_text())["project"]
    (verl,) = [line for line in project["dependencies"] if re.match(r"verl\W", line)]
    values = {"license": project["license"], "python": project["requires-python"], "verl": verl.removeprefix("verl")}
    return badge(name, values[name])


BADGES: dict[str, Callable[[Path], str]] = {
    f"docs/start/images/{name}.svg": partial(drawn, name) for name in ("license", "python", "verl")
}
