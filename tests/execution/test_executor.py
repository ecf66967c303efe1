from __future__ import annotations

import pytest

from verl_mas.errors import ConfigError
from verl_mas.execution.executor import RunResult, executor, register_executor


def test_a_missing_executor_is_refused_with_the_fix():
    with pytest.raises(ConfigError, match="a sandbox of your choice"):
        executor(None)


@pytest.mark.parametrize("name", ["nowhere", "nowhere:run", "math:nothing", ":x", "math:pi", "os:system"])
def test_an_executor_must_be_an_async_function_that_can_be_imported(name):
    with pytest.raises(ConfigError, match="executor"):
        executor(name)


def test_a_failed_program_has_no_answer():
    assert RunResult("0.5\n").last_line == "0.5"
    assert RunResult("0.5\n", error="killed").last_line is None and RunResult("").last_line is None


def test_an_executor_is_found_by_its_registered_name():
    @register_executor("test_registered")
    async def run(code: str) -> RunResult:
        return RunResult(output=code)

    assert executor("test_registered") is run
    with pytest.raises(ConfigError, match="did you mean 'test_registered'"):
        executor("test_registred")


class Sandbox:
    async def __call__(self, code: str) -> RunResult:
        return RunResult(output=code)


sandbox = Sandbox()


def test_an_object_with_an_async_call_is_an_executor():
    assert executor(f"{__name__}:sandbox") is sandbox
