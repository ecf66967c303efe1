"""Requests at closed gates."""

from __future__ import annotations

import asyncio

from verl_mas.rollout.gates import Gate
from verl_mas.workflow.clock import Clock, ended, start


def test_requests_pass_an_open_gate_at_once_and_a_closed_one_in_their_order():
    async def scenario():
        gate, passed = Gate(), []

        async def request(name):
            await gate.passed()
            passed.append(name)

        await request("early")
        gate.close()
        gate.close()
        waiting = [asyncio.ensure_future(request(number)) for number in range(3)]
        await asyncio.sleep(0.01)
        assert passed == ["early"] and not gate.is_open
        gate.open()
        await asyncio.gather(*waiting)
        return passed, gate.closings

    assert asyncio.run(scenario()) == (["early", 0, 1, 2], 1)


def test_a_request_waits_again_at_a_gate_that_closed_before_it_was_through():
    async def scenario():
        gate = Gate()
        gate.close()
        request = asyncio.ensure_future(gate.passed())
        await asyncio.sleep(0)
        gate.open()
        gate.close()
        await asyncio.sleep(0.01)
        waits = not request.done()
        gate.open()
        await request
        return waits

    assert asyncio.run(scenario())


def test_no_time_passes_at_a_closed_gate():
    async def scenario():
        gate, clock = Gate(), Clock(0.05)
        gate.close()
        act = start(gate.passed(), clock)
        asyncio.get_running_loop().call_later(0.15, gate.open)
        return await ended(act, clock)

    assert asyncio.run(scenario())
