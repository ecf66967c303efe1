import json
import math
import time

import orjson
import pytest

from verl_mas.util.text import all_encodable, bare_address, encodable, printable, sparkline

LONE = json.loads('"half \\ud83d"')


def test_a_lone_surrogate_becomes_text_that_every_file_takes_and_the_rest_is_kept():
    assert encodable(LONE) == "half \\ud83d"
    assert encodable("whole \U0001f600 \0") == "whole \U0001f600 \0"
    value = {LONE: [LONE, 1, None], "b": (LONE, {"c": True})}
    clean = {"half \\ud83d": ["half \\ud83d", 1, None], "b": ("half \\ud83d", {"c": True})}
    assert all_encodable(value) == clean
    orjson.dumps(all_encodable(value))


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
    assert printable(text) == shown


@pytest.mark.parametrize("password", ["pw", "p,w", "p'w", "p:w)", 'p"w', "a@b"])
@pytest.mark.parametrize(
    "around",
    [
        "{}",
        "url={} fails",
        "{}: it fails",
        "['{}', 'me@home']",
        '{{"url":"{}","by":"me@home"}}',
        "({}), me@home",
        "http://a;b={}",
    ],
)
def test_addresses_in_a_text_lose_user_and_query_alone(around, password):
    given = around.format(f"https://me:{password}@host:1/v1/x?key=a")
    assert bare_address(given) == around.format("https://host:1/v1/x")
    assert bare_address(bare_address(given)) == bare_address(given)


def test_the_addresses_of_a_long_text_take_no_long_time():
    text = "a.-" * 100_000 + "://a" * 100_000 + "@" * 100_000
    started = time.monotonic()
    assert bare_address(text) == text[: 300_000 + 4 * 100_000 - 1]
    assert time.monotonic() - started < 5


def test_text_is_not_changed():
    assert printable("líne 1\n\tΩ 数\u00a07") == "líne 1\n\tΩ 数\u00a07"
    assert printable("two\nlines", keep="") == "two\\nlines"


def test_a_sparkline_is_scaled_from_the_lowest_to_the_highest():
    assert sparkline([0, 1, math.nan, 2]) == "▁▅█"
    assert sparkline([]) == "" and sparkline([math.nan]) == "" and sparkline([3, 3]) == "▁▁"
    assert len(sparkline(list(range(1000)))) == 40
