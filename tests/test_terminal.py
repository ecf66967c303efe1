from __future__ import annotations

import pytest

from verl_mas.terminal import visible


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("\x1b[2J\x1b]52;c;aGk=\x07", "\\x1b[2J\\x1b]52;c;aGk=\\x07"),
        ("\x9b31m", "\\x9b31m"),
        ("a\rb", "a\\rb"),
        ("\u202etxt", "\\u202etxt"),
        ("half \ud83d", "half \\ud83d"),
        ("a\0b", "a\\x00b"),
    ],
)
def test_what_a_terminal_would_obey_is_written_out(text, shown):
    assert visible(text) == shown


def test_text_is_not_changed():
    assert visible("líne 1\n\tΩ 数\u00a07") == "líne 1\n\tΩ 数\u00a07"
    assert visible("two\nlines", keep="") == "two\\nlines"
