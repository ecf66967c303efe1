"""Text of others, made safe for encoders and terminals, and text for terminals."""

from __future__ import annotations

import ipaddress
import math
import re
import textwrap
import unicodedata
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TypeVar

T = TypeVar("T")
BARS = "▁▂▃▄▅▆▇█"


def encodable(text: str) -> str:
    r"""The text with each lone surrogate as the six characters `\udXXX`.

    Python's JSON decoder makes lone surrogates, so a model can cause them; UTF-8, and with it every file, has none.
    """
    return text.encode("utf-8", "backslashreplace").decode()


def in_texts(change: Callable[[str], str], value: T) -> T:
    """The same value with every text in it, names included, changed."""
    clean: object = value
    if isinstance(value, str):
        clean = change(value)
    elif isinstance(value, dict):
        clean = {in_texts(change, name): in_texts(change, item) for name, item in value.items()}
    elif type(value) in (list, tuple):
        clean = type(value)(in_texts(change, item) for item in value)  # type: ignore[call-arg,attr-defined]
    return clean  # type: ignore[return-value]


def texts_in(value: object) -> list[str]:
    """Every text in a value, names left out."""
    if isinstance(value, str):
        return [value]
    parts = value.values() if isinstance(value, Mapping) else value if isinstance(value, list | tuple) else ()
    return [text for part in parts for text in texts_in(part)]


all_encodable = partial(in_texts, encodable)


def characters(value: object) -> int:
    """Count the characters of all strings in a nested value."""
    return sum(map(len, texts_in(value)))


# Of an address in a text: user and password, which may have quotes, the host and the path, and the query.
_ADDRESS = re.compile(
    r"""://(?:(?:[^\s/?#'"]|['"](?![\s,:\]})]))*@)?((?:(?!://)[^\s?'",\]})])*)(?:\?[^\s'",\]})]*[^\s'",\]}):;.])?"""
)


def bare_address(text: str) -> str:
    """A text whose addresses are without user and query, which may have a password or a key."""
    return _ADDRESS.sub(r"://\1", text)


def printable(text: str, keep: str = "\n\t") -> str:
    """The text with what a terminal would obey instead of print, such as escape sequences, written as `\\x1b`.

    A model, a corpus or an endpoint could otherwise clear the screen, hide lines or write to the clipboard.
    """
    prints = (char in keep or char.isprintable() or unicodedata.category(char) == "Zs" for char in text)
    return "".join(
        char if ok else char.encode("unicode_escape").decode() for char, ok in zip(text, prints, strict=True)
    )


def listed(rows: Mapping[str, str], width: int, margin: str = "") -> str:
    """A line per name with its text, which wraps below its own beginning."""
    longest = max(map(len, rows), default=0)
    lines = []
    for name, text in rows.items():
        head = f"{margin}{name:{longest}}  "
        # Where a column of the texts would be too narrow, they begin at the margin.
        after = " " * (len(head) if len(head) <= width // 2 else len(margin) + 2)
        lines.append(textwrap.fill(head + text, max(width, 20), subsequent_indent=after, break_on_hyphens=False))
    return "\n".join(lines)


def is_loopback(host: str | None) -> bool:
    """Whether a name or an address is that of the machine itself."""
    try:
        return ipaddress.ip_address(host or "").is_loopback
    except ValueError:
        return host == "localhost"


def sparkline(values: Sequence[float], width: int = 40) -> str:
    """The values as a line of bars, scaled from their minimum to their maximum."""
    finite = [value for value in values if math.isfinite(value)]
    if not finite:
        return ""
    step = -(-len(finite) // width)
    means = [sum(part) / len(part) for part in (finite[i : i + step] for i in range(0, len(finite), step))]
    low, span = min(means), max(means) - min(means) or 1.0
    return "".join(BARS[round((value - low) / span * (len(BARS) - 1))] for value in means)
