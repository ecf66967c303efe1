"""Tests that are coroutines: a conftest imports the hook for the tests of its folder."""

import asyncio
import inspect

import pytest


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Run a test that is a coroutine in a new event loop, or in the `LOOP` of its module."""
    test = pyfuncitem.obj
    if not inspect.iscoroutinefunction(test):
        return None
    run = loop.run_until_complete if (loop := getattr(pyfuncitem.module, "LOOP", None)) else asyncio.run
    run(test(**{name: pyfuncitem.funcargs[name] for name in inspect.signature(test).parameters}))
    return True
