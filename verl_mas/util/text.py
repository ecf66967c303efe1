"""Makes untrusted text safe for encoders and terminals, and formats text for terminals."""

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
    r"""Replace each lone surrogate in a text by the six characters `\udXXX`.

    Python's JSON decoder makes lone surrogates, so text of a model may contain them. UTF-8 cannot encode them, so they
    cannot be written to files.
    """
    return text.encode("utf-8", "backslashreplace").decode()


def in_texts(change: Callable[[str], str], value: T) -> T:
    """Apply `change` to every string in a nested value, including the keys of dicts."""
    clean: object = value
    if isinstance(value, str):
        clean = change(value)
    elif isinstance(value, dict):
        clean = {in_texts(change, name): in_texts(change, item) for name, item in value.items()}
    elif type(value) in (list, tuple):
        clean = type(value)(in_texts(change, item) for item in value)  # type: ignore[call-arg,attr-defined]
    return clean  # type: ignore[return-value]


def texts_in(value: object) -> list[str]:
    """List all strings in a nested value, except the keys of mappings."""
    if isinstance(value, str):
        return [value]
    parts = value.values() if isinstance(value, Mapping) else value if isinstance(value, list | tuple) else ()
    return [text for part in parts for text in texts_in(part)]


all_encodable = partial(in_texts, encodable)


def characters(value: object) -> int:
    """Count the characters of all strings in a nested value."""
    return sum(map(len, texts_in(value)))


# Parts of a URL in a text: user and password, which may contain quotes; host and path (group 1); and the query.
_ADDRESS = re.compile(
    r"""://(?:(?:[^\s/?#'"]|['"](?![\s,:\]})]))*@)?((?:(?!://)[^\s?'",\]})])*)(?:\?[^\s'",\]})]*[^\s'",\]}):;.])?"""
)


def bare_address(text: str) -> str:
    """Remove the user and the query from all URLs in a text, because they may contain a password or a key."""
    return _ADDRESS.sub(r"://\1", text)


def printable(text: str, keep: str = "\n\t") -> str:
    """Escape characters that a terminal would interpret instead of print. The escape character becomes `\\x1b`.

    Otherwise text of a model, corpus or endpoint could clear the screen, hide lines or write to the clipboard.
    """
    prints = (char in keep or char.isprintable() or unicodedata.category(char) == "Zs" for char in text)
    return "".join(
        char if ok else char.encode("unicode_escape").decode() for char, ok in zip(text, prints, strict=True)
    )


def listed(rows: Mapping[str, str], width: int, margin: str = "") -> str:
    """Format one line per name with its text. A long text is wrapped, and its further lines begin in the
    same column as its first line."""
    longest = max(map(len, rows), default=0)
    lines = []
    for name, text in rows.items():
        head = f"{margin}{name:{longest}}  "
        # If the column of texts would be too narrow, indent further lines only a little.
        after = " " * (len(head) if len(head) <= width // 2 else len(margin) + 2)
        lines.append(textwrap.fill(head + text, max(width, 20), subsequent_indent=after, break_on_hyphens=False))
    return "\n".join(lines)


def is_loopback(host: str | None) -> bool:
    """Whether a host name or address is a loopback address of this machine."""
    try:
        return ipaddress.ip_address(host or "").is_loopback
    except ValueError:
        return host == "localhost"


def sparkline(values: Sequence[float], width: int = 40) -> str:
    """Draw the values as a line of bars, scaled from their minimum to their maximum."""
    finite = [value for value in values if math.isfinite(value)]
    if not finite:
        return ""
    step = -(-len(finite) // width)
    means = [sum(part) / len(part) for part in (finite[i : i + step] for i in range(0, len(finite), step))]
    low, span = min(means), max(means) - min(means) or 1.0
    return "".join(BARS[round((value - low) / span * (len(BARS) - 1))] for value in means)
