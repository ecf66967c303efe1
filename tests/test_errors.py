import asyncio
import pickle
from concurrent.futures import Future, ThreadPoolExecutor
from unittest.mock import Mock

import pytest

from verl_mas.errors import ConfigError, ConfigErrors, ForeignError, MasError, foreign, raise_all
from verl_mas.util.threads import settle

ONE, TWO = ConfigError("x=1", rule="x is 2", fix="set x=2"), ConfigError("y=1", rule="y is 3", fix="set y=3")


def test_one_error_is_raised_as_it_is_and_several_as_one_that_names_all():
    raise_all([])
    with pytest.raises(ConfigError) as raised:
        raise_all([ONE])
    assert raised.value is ONE
    with pytest.raises(ConfigErrors, match=r"set x=2(?s:.)*set y=3") as raised:
        raise_all([ONE, ConfigErrors([TWO, ONE])])
    assert raised.value.errors == (ONE, TWO, ONE)
    assert str(pickle.loads(pickle.dumps(raised.value))) == str(raised.value), "it crosses processes"


class Panic(BaseException):
    """Stands for a panic of Rust."""


def left_by(error, *passing, exits):
    """The exception that leaves the boundary."""
    try:
        with foreign(*passing, exits=exits):
            raise error
    except BaseException as left:  # noqa: BLE001
        return left


@pytest.mark.parametrize(
    ("error", "by_default", "with_exits"),
    [
        (ValueError("no"), True, True),
        (StopIteration(), True, True),
        (Panic("no"), False, True),
        (SystemExit(3), False, True),
        (asyncio.CancelledError(), False, False),
        (KeyboardInterrupt(), False, False),
        (ConfigError("x=1", rule="x is 2", fix="set x=2"), False, False),
    ],
)
def test_exceptions_of_foreign_code_become_one_type_and_what_stops_the_caller_passes(error, by_default, with_exits):
    for exits, converted in ((False, by_default), (True, with_exits)):
        left = left_by(error, MasError, exits=exits)
        assert isinstance(left, ForeignError) == converted
        assert (left.error if converted else left) is error


def test_a_keyboard_interrupt_that_is_not_the_users_is_converted():
    with ThreadPoolExecutor() as threads:
        left = threads.submit(left_by, KeyboardInterrupt(), exits=True).result()
    assert isinstance(left, ForeignError)


@pytest.mark.parametrize("error", [StopIteration, KeyboardInterrupt, GeneratorExit, asyncio.CancelledError])
def test_an_exception_that_a_waiting_coroutine_would_misread_is_named(error):
    async def waited():
        future = Future()
        settle(future, Mock(side_effect=error))
        await asyncio.wait_for(asyncio.wrap_future(future), 5)

    with pytest.raises(RuntimeError, match=error.__name__):
        asyncio.run(waited())
