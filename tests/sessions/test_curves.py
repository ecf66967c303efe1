import math
import xml.etree.ElementTree as ET

import pytest

from verl_mas.sessions import curves
from verl_mas.sessions.curves import Panel, draw, nice_ticks, sparkline, write_curves

PANELS = [
    Panel("reward", {"a<b": ([1, 2, 3], [0.5, math.nan, 0.9]), "b": ([1, 2], [0.6, 0.7])}, {"chance": 0.55}),
    Panel("not logged", {"a": ([1], [math.nan])}),
]


def test_curves_are_drawn_without_an_extra(tmp_path, monkeypatch):
    monkeypatch.setattr(curves.importlib.util, "find_spec", lambda name: None)
    (svg,) = write_curves(PANELS, tmp_path / "curves", "A run & more")
    root = ET.fromstring(svg.read_text())
    texts = [element.text for element in root.iter() if element.tag.endswith("text")]
    assert "A run & more" in texts and "a<b" in texts and "chance" in texts and "not logged" not in texts
    lines = [element.get("points").split() for element in root.iter() if element.tag.endswith("polyline")]
    assert [len(points) for points in lines] == [2, 2], "without the value that is none"


def test_the_axis_begins_near_the_lowest_value():
    assert nice_ticks(0.52, 0.97) == [0.4, 0.6, 0.8, 1.0]
    assert nice_ticks(0, 1) == [0, 0.5, 1.0]
    assert nice_ticks(-3, 12) == [-5, 0, 5, 10, 15]


@pytest.mark.parametrize("value", [0.0, 1e-15, 0.019047619048, 3e8])
def test_values_that_differ_by_their_rounding_have_an_axis(value):
    ticks = nice_ticks(value, value * (1 + 1e-15))
    assert ticks[0] <= value and ticks[0] < ticks[-1]


def test_small_numbers_have_small_ticks():
    assert nice_ticks(1e-14, 3e-14) == [1e-14, 2e-14, 3e-14]


@pytest.mark.parametrize("values", [(0.5, 0.5), (0, 0), (-7, -7), (1e-9, 3e-9), (1e6, 2e6)])
def test_every_range_has_an_axis_around_it(values):
    ticks = nice_ticks(*values)
    assert 2 <= len(ticks) <= 6 and ticks[0] <= values[0] + 1e-12 and ticks[-1] >= values[1] - 1e-12


def test_a_picture_without_a_curve_is_one():
    ET.fromstring(draw([], "nothing"))


def test_a_sparkline_is_scaled_from_the_lowest_to_the_highest():
    assert sparkline([0, 1, math.nan, 2]) == "▁▅█"
    assert sparkline([]) == "" and sparkline([math.nan]) == "" and sparkline([3, 3]) == "▁▁"
    assert len(sparkline(list(range(1000)))) == 40


def test_matplotlib_draws_the_same_where_it_is_installed(tmp_path):
    pytest.importorskip("matplotlib")
    _, png = write_curves(PANELS, tmp_path / "curves", "a")
    assert png.read_bytes().startswith(b"\x89PNG")
