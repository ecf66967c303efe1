"""Text of others in a terminal."""

from __future__ import annotations

import unicodedata


def visible(text: str, keep: str = "\n\t") -> str:
    """The text with what a terminal would obey instead of print, such as escape sequences, written as `\\x1b`.

    A model, a corpus or an endpoint could otherwise clear the screen, hide lines or write to the clipboard.
    """
    return "".join(char if char in keep or _prints(char) else _escaped(char) for char in text)


def _prints(char: str) -> bool:
    return char.isprintable() or unicodedata.category(char) == "Zs"


def _escaped(char: str) -> str:
    return char.encode("unicode_escape").decode()
