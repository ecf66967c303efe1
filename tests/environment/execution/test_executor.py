import math

import pytest

from verl_mas.environment.execution.executor import Execution, Limits, Result, Status, register_executor
from verl_mas.errors import ConfigError


class Nothing:
    """Runs nothing, and remembers its settings."""

    def __init__(self, settings: Execution):
        self.settings = settings

    def check(self) -> None:
        raise ConfigError("no machine", rule="there is one", fix="buy one")

    execute = call = aclose = check


def test_an_executor_is_found_by_its_registered_name_and_by_its_place():
    register_executor("test_registered")(Nothing)
    for name in ("test_registered", f"{__name__}:Nothing"):
        assert isinstance(Execution(name).open(), Nothing)
    with pytest.raises(ConfigError, match="did you mean 'test_registered'"):
        Execution("test_registred").open()


def test_equal_settings_share_an_executor_which_gets_them_and_limits_are_given_with_each_program():
    own = f"{__name__}:Nothing"
    settings = Execution(own, packages=["numpy"], slots=4)
    assert settings.open().settings is settings
    assert settings.open() is Execution(own, packages=["numpy"], slots=4, cpu_s=9).open()
    assert settings.open() is not Execution(own, slots=5).open()
    with pytest.raises(ConfigError, match="no machine"):
        settings.check()
    assert Execution(cpu_s=9, memory_mb=99, output_bytes=999).limits == Limits(9, None, 99, 999)


@pytest.mark.parametrize(
    ("name", "says"),
    [("builtins:repr", ": it made"), ("builtins:nothing", r"\n(?s:.*)define nothing"), ("no.such:x", "")],
)
def test_what_is_no_executor_is_refused(name, says):
    with pytest.raises(ConfigError, match=f"executor={name.partition(':x')[0]}{says}"):
        Execution(name).open()


def test_a_failed_program_has_no_last_line_and_a_reason_of_one_line():
    assert Result(Status.OK, "1\n 0.5 \n").last_line == "0.5" and Result(Status.OK).last_line is None
    failed = Result(Status.ERROR, "0.5", "Traceback\n  x\nZeroDivisionError: y\n")
    assert failed.last_line is None and failed.error == "error: ZeroDivisionError: y"
    assert Result(Status.TIMED_OUT).error == "timed out" and Result(Status.OK).error is None


@pytest.mark.parametrize("limit", ["cpu_s", "wall_s", "memory_mb", "output_bytes", "threads"])
@pytest.mark.parametrize("value", [0, -1, math.inf, math.nan])
def test_a_limit_that_no_process_can_have_is_refused(limit, value):
    # A program may use three times its CPU time plus two seconds.
    assert Limits(cpu_s=2).seconds == 8 and Limits(cpu_s=2, wall_s=1).seconds == 1
    with pytest.raises(ConfigError, match=f"limits.{limit}="):
        Limits(**{limit: value})
