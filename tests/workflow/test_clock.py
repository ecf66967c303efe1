"""Time limits, whose clocks stop while an act waits for its turn."""

import asyncio
import time

import pytest

from verl_mas.workflow.clock import STANDING_S, Clock, ended, held, start, uncounted


async def wait(seconds):
    with uncounted():
        await asyncio.sleep(seconds)


async def hold(seconds):
    with held():
        await asyncio.sleep(seconds)


def nested(work, session, act):
    """Return whether a session ended in time, and whether its act did."""

    async def main():
        outer, inner = Clock(session), Clock(act)
        acts = []

        async def run_session():
            acts.append(start(work(), inner))
            acts.append(await ended(acts[0], inner))

        task = start(run_session(), outer, session=True)
        return await ended(task, outer), acts[1:] == [True]

    return asyncio.run(main())


async def away():
    await asyncio.sleep(0.03)
    await hold(0.08)
    await asyncio.sleep(60)


@pytest.mark.parametrize(
    ("work", "session", "act", "in_time"),
    [
        # While engines accept no requests, both clocks stop. Later each clock has only its remaining time.
        (lambda: hold(0.6), 0.3, 0.3, (True, True)),
        (away, 60, 0.05, (True, False)),
        (away, 0.05, 60, (False, False)),
        # The time in which acts wait for tools counts for the session.
        (lambda: wait(0.15), 0.05, 0.05, (False, False)),
    ],
)
def test_the_clocks_of_an_act_and_its_session_stand_still_for_what_is_not_their_own(work, session, act, in_time):
    assert nested(work, session, act) == in_time


def test_a_clock_continues_with_the_time_that_it_was_stopped_at_and_is_looked_at_seldom_meanwhile(monkeypatch):
    clock = Clock(0.01)
    with uncounted(), held(), clock.stopped():  # there is no act outside of a session
        assert clock.next_look == STANDING_S
    assert clock.next_look <= 0.01
    now = 0.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    clock = Clock(10)
    for now, left in ((3.0, 7), (13.0, 6)):
        with clock.stopped():
            assert clock.left == left
            now += 9.0
            with clock.stopped():
                assert clock.left == left
        assert clock.left == left
