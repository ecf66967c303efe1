from __future__ import annotations

import asyncio
import time

import pytest

from verl_mas.testing.blocking import Watch


def blocking():
    time.sleep(1.0)


@pytest.mark.parametrize(("what", "lines"), [(blocking, 1), (time.sleep, 0)], ids=["here", "elsewhere"])
def test_only_what_the_loop_runs_is_blamed_and_not_the_file_that_runs_the_loop(what, lines):
    watch = Watch(__file__)

    async def run():
        with watch.running():
            asyncio.get_running_loop().call_soon(what, *([] if what is blocking else [1.0]))
            await asyncio.sleep(0.01)

    asyncio.run(run())
    assert len(watch.places) == lines
