import asyncio
import os
import signal
import threading
import time
from contextlib import closing

import pytest

from verl_mas.util.loop_thread import LoopThread


@pytest.fixture
def loop():
    with closing(LoopThread("test")) as loop:
        yield loop


class Items:
    """A generator that waits for its second item, and then takes a moment to end."""

    def __init__(self):
        self.waiting, self.ended, self.ran_on = threading.Event(), False, False

    async def __call__(self):
        try:
            yield 1
            self.waiting.set()
            await asyncio.sleep(3)
            self.ran_on = True
        finally:
            await asyncio.sleep(0.02)
            self.ended = True


def test_a_cancelled_iteration_ends_its_generator(loop):
    items = Items()

    async def read():
        async for _ in loop.aiterate(items()):
            pass

    async def cancelled():
        reading = asyncio.ensure_future(read())
        await asyncio.to_thread(items.waiting.wait)
        reading.cancel()
        with pytest.raises(asyncio.CancelledError):
            await reading

    asyncio.run(cancelled())
    assert items.ended and not items.ran_on


@pytest.fixture
def interruptible():
    """A process that a shell starts in the background ignores interrupts."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("interruptible")
@pytest.mark.parametrize("early", [False, True], ids=["while it waits", "before it waits"])
def test_an_interrupted_iteration_ends_its_generator(loop, early, monkeypatch):
    items, start = Items(), loop.start

    def interrupt():
        items.waiting.wait()
        time.sleep(0.05)  # a signal that comes as the caller begins to wait is noticed when the wait ends
        os.kill(os.getpid(), signal.SIGINT)

    def started_late(coroutine):
        future = start(coroutine)
        items.waiting.wait(0.2)
        time.sleep(0.2)
        return future

    if early:
        monkeypatch.setattr(loop, "start", started_late)
    threading.Thread(target=interrupt).start()
    with pytest.raises(KeyboardInterrupt):
        list(loop.iterate(items()))
    assert items.ended and not items.ran_on
