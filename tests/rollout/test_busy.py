"""Spans in which engines have requests, and the longest time for which an event loop is blocked."""

import asyncio
import time

import pytest

from verl_mas.rollout import busy as module
from verl_mas.rollout.busy import Busy, Lag, merge_spans, seconds


@pytest.fixture
def clock(monkeypatch):
    """Sets the time."""
    monkeypatch.setattr(module.clock, "now", lambda: clock.now)

    def clock(now):
        clock.now = now

    clock(0.0)
    return clock


def test_requests_that_overlap_are_one_span(clock):
    busy = Busy()
    with busy.request():
        clock(1.0)
        with busy.request():
            clock(2.0)
        clock(3.0)
    clock(5.0)

    def failing():
        with busy.request():
            clock(6.0)
            raise KeyError

    with pytest.raises(KeyError):
        failing()
    assert busy.pop() == ((0.0, 3.0), (5.0, 6.0))
    assert busy.pop() == ()
    assert (busy.pop_seconds(), busy.pop_seconds()) == (5.0, 0.0)


def test_a_request_that_is_still_out_is_counted_up_to_now_and_never_twice(clock):
    busy = Busy()
    with busy.request():
        clock(1.0)
        assert busy.pop() == ((0.0, 1.0),)
        clock(4.0)
    assert busy.pop() == ((1.0, 4.0),)


def test_spans_of_several_processes_are_joined_and_cut_to_the_window():
    spans = [(4.0, 6.0), (0.0, 2.0), (1.0, 3.0)]
    assert merge_spans(spans) == [(0.0, 3.0), (4.0, 6.0)]
    assert merge_spans(spans, gap=1.0) == [(0.0, 6.0)]
    assert seconds(spans, (2.5, 5.0)) == 1.5
    assert seconds(spans, (7.0, 8.0)) == 0.0


async def test_a_blocked_loop_is_measured_until_the_measurement_is_read():
    lag = Lag()
    assert lag.pop() == 0
    lag.begin()
    lag.begin()
    await asyncio.sleep(0.1)
    time.sleep(0.3)
    await asyncio.sleep(0.1)
    assert 0.2 < lag.pop() < 3
    time.sleep(0.1)
    await asyncio.sleep(0.1)
    assert lag.pop() == 0
