import signal
import time

import pytest
from omegaconf import OmegaConf

from verl_mas.checks.refusals import Refusals, TimeLimit, user_code
from verl_mas.errors import ConfigError, ConfigErrors, DataError, raise_all

ONE, TWO = ConfigError("x=1", rule="x is 2", fix="set x=2"), ConfigError("y=1", rule="y is 3", fix="set y=3")
THREE = ConfigError("z=1", rule="z is 4", fix="set z=4")


def passes():
    yield from ()


def test_the_errors_of_all_checks_are_raised_as_one_and_the_same_error_once():
    found = Refusals()
    assert found.of(passes())
    assert not found.of([ONE], [TWO])
    assert not found.of([ONE])
    with pytest.raises(ConfigErrors) as raised:
        raise_all(found.errors)
    assert raised.value.errors == (ONE, TWO)


def test_a_value_that_cannot_be_resolved_is_an_error_without_a_traceback():
    config = OmegaConf.create({"a": {"b": "${nowhere.x}"}})

    def reads():
        yield config.a.b

    found = Refusals()
    found.of(reads())
    (error,) = found.errors
    assert error.value == "a.b: Interpolation key 'nowhere.x' not found"
    assert "set a.b" in error.fix


def test_the_result_of_a_function_that_raises_is_an_error_and_none():
    found = Refusals()
    found.of([ONE])

    def load():
        raise ConfigErrors([TWO, THREE])

    assert found.result(load) is None
    assert found.errors == [ONE, TWO, THREE]
    assert Refusals().result(lambda: 3) == 3


def test_a_users_exception_is_reported_with_its_place_and_without_our_frames(tmp_path):
    file = tmp_path / "mine.py"
    file.write_text("def agents():\n    return 1 / 0\n")
    scope = {}
    exec(compile(file.read_text(), str(file), "exec"), scope)
    with pytest.raises(ConfigError, match="ZeroDivisionError: division by zero") as raised, user_code():
        scope["agents"]()
    assert raised.value.value.startswith(f"{file}, line 2: ZeroDivisionError")
    assert "return 1 / 0" in raised.value.value
    assert "in user_code" not in raised.value.value
    assert raised.value.fix == f"correct {file}, line 2"


def test_a_refusal_raised_by_user_code_is_not_changed():
    with pytest.raises(DataError), user_code():
        raise DataError("row 3", rule="it has an answer", fix="add it")


@pytest.mark.parametrize("caught", [Exception, BaseException])
def test_user_code_that_does_not_end_is_stopped_with_its_place_even_if_it_catches_exceptions(caught):
    def waits():
        seen = []
        while len(seen) < 2:
            try:
                time.sleep(60)
            except caught as error:
                seen.append(error)
        return seen

    started = time.monotonic()
    if caught is BaseException:
        with user_code(0.05):
            assert [type(error) for error in waits()] == [TimeLimit, TimeLimit]
    else:
        with pytest.raises(ConfigError, match=r"no end after 0\.05 s") as raised, user_code(0.05):
            waits()
        assert f"{__file__}, line" in raised.value.value and "check_timeout_s=0.5" in raised.value.fix
    assert time.monotonic() - started < 30


def test_the_time_limit_leaves_the_timer_of_others_as_it_was():
    rang = []
    before = signal.signal(signal.SIGALRM, lambda *_: rang.append(True))
    signal.setitimer(signal.ITIMER_REAL, 0.3)
    try:
        with user_code(60):
            pass
        assert 0 < signal.getitimer(signal.ITIMER_REAL)[0] <= 0.3
        time.sleep(0.5)
        assert rang == [True]
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
