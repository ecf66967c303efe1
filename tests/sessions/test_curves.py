import math
import xml.etree.ElementTree as ET

from hypothesis import example, given, settings
from hypothesis import strategies as st

from verl_mas.sessions.curves import draw, nice_ticks, sparkline


def test_curves_are_drawn_as_svg():
    curves = {"a<b": ([1, 2, 3], [0.5, math.nan, 0.9]), "b": ([1, 2], [0.6, 0.7]), "not logged": ([1], [math.nan])}
    root = ET.fromstring(draw(curves, "A run & more"))
    texts = [element.text for element in root.iter() if element.tag.endswith("text")]
    assert "A run & more" in texts and "a<b" in texts and "not logged" not in texts
    lines = [element.get("points").split() for element in root.iter() if element.tag.endswith("polyline")]
    assert [len(points) for points in lines] == [2, 2], "without the value that is none"
    ET.fromstring(draw({}, "a picture without a curve"))


def test_the_axis_begins_near_the_lowest_value():
    assert nice_ticks(0.52, 0.97) == [0.4, 0.6, 0.8, 1.0]
    assert nice_ticks(0, 1) == [0, 0.5, 1.0]
    assert nice_ticks(-3, 12) == [-5, 0, 5, 10, 15]


@given(st.floats(-1e9, 1e9), st.floats(0, 1e9) | st.floats(0, 1e-12))
@example(1e-14, 2e-14)
@example(0.0, 5e-324)
@settings(max_examples=40)
def test_every_range_has_an_axis_of_few_numbers_around_it(low, more):
    """Numbers that differ by their rounding are one."""
    high = low + more
    ticks = nice_ticks(low, high)
    rounding = 1e-8 * max(abs(low), abs(high), ticks[-1] - ticks[0])
    assert 2 <= len(ticks) <= 7 and ticks[0] <= low + rounding and ticks[-1] >= high - rounding
    assert sorted(set(ticks)) == ticks


def test_a_sparkline_is_scaled_from_the_lowest_to_the_highest():
    assert sparkline([0, 1, math.nan, 2]) == "▁▅█"
    assert sparkline([]) == "" and sparkline([math.nan]) == "" and sparkline([3, 3]) == "▁▁"
    assert len(sparkline(list(range(1000)))) == 40
