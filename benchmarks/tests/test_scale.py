"""Tests that each scale benchmark, at its smallest size, runs the code that it measures, and prints its curves."""

from __future__ import annotations

import asyncio
import importlib
import math
import time

import pytest

from benchmarks.scale.curve import Owners, exponent, sizes
from benchmarks.scale.loop import SimulatedLoop

SMALL = {
    "controller": (["--rows", "32,64"], ["controller with the proposed changes", "patched, at 64 rows"]),
    "driver": (["--rows", "64,128", "--policies", "2", "--ranks", "2"], ["verl_mas, us per row at 128 rows"]),
    "sessions": (["--sessions", "16,32", "--waiting", "16", "--prompt", "50"], ["makespan / critical path", "kB per"]),
    "records": (["--sessions", "32,64"], ["view, us per session at 64"]),
}


@pytest.mark.parametrize("module", SMALL)
def test_a_benchmark_runs_and_prints_each_curve_with_its_exponent(module, capsys):
    arguments, lines = SMALL[module]
    importlib.import_module(f"benchmarks.scale.{module}").main(arguments)
    printed = capsys.readouterr().out
    assert "exponent" in printed and all(line in printed for line in lines)


def test_the_exponent_of_a_power_is_found_and_sizes_are_read():
    assert exponent({size: 3.0 * size**1.5 for size in (10, 100, 1000)}) == pytest.approx(1.5)
    assert math.isnan(exponent({10: 1.0})) and sizes("64,4k") == [64, 4096]


def test_a_call_inside_another_one_is_counted_once():
    owners = Owners("rest")
    with owners.of("outer"):
        while time.process_time() - owners._since < 0.02:  # noqa: SLF001
            pass
        with owners.of("inner"):
            pass
    taken = owners.take()
    assert taken["outer"] >= 0.02 > taken["inner"] + taken["rest"]


def test_waits_take_no_time_and_keep_their_order():
    loop, ended = SimulatedLoop(), []

    async def wait(seconds: float) -> None:
        await asyncio.sleep(seconds)
        ended.append(seconds)

    async def both() -> float:
        begin = loop.time()
        await asyncio.gather(wait(3000.0), wait(1000.0), asyncio.to_thread(time.sleep, 0.01))
        return loop.time() - begin

    began = time.monotonic()
    assert loop.run_until_complete(both()) == pytest.approx(3000, abs=1) and ended == [1000.0, 3000.0]
    assert time.monotonic() - began < 60
    loop.run_until_complete(loop.shutdown_default_executor())
    loop.close()
