"""Colours can be read: WCAG asks for a contrast of 4.5 between text and ground."""

from __future__ import annotations

import re
from itertools import product

import pytest

from verl_mas.results.sessions.view.page import HERE, STYLE

CSS = (HERE / STYLE).read_text()
AGENTS = [f"a{number}" for number in range(12)]


COLOURS = re.findall(r"--([a-z0-9-]+): light-dark\((#[0-9a-f]{6}), (#[0-9a-f]{6})\)", CSS)
LIGHT = {name: light for name, light, _ in COLOURS}
DARK = {name: dark for name, _, dark in COLOURS}


def luminance(colour: str) -> float:
    parts = [int(colour[place : place + 2], 16) / 255 for place in (1, 3, 5)]
    linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(one: str, other: str) -> float:
    low, high = sorted([luminance(one), luminance(other)])
    return (high + 0.05) / (low + 0.05)


@pytest.mark.parametrize("theme", [LIGHT, DARK], ids=["light", "dark"])
def test_texts_and_the_names_of_agents_can_be_read(theme):
    pairs = [*product(["ink", "muted", *AGENTS, "up", "down", "focus"], ["panel", "ground"]), ("muted", "sunk")]
    pairs += [("up", "up-soft"), ("down", "down-soft"), ("ink", "chosen"), ("muted", "chosen"), ("ink", "found")]
    contrasts = {(one, other): contrast(theme[one], theme[other]) for one, other in pairs}
    assert {pair: value for pair, value in contrasts.items() if value < 4.5} == {}
    assert len({theme[name] for name in AGENTS}) == len(AGENTS), "no two agents have one colour"
