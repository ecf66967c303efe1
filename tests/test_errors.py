import pickle

import pytest

from verl_mas.errors import ConfigError, ConfigErrors, raise_all

ONE, TWO = ConfigError("x=1", rule="x is 2", fix="set x=2"), ConfigError("y=1", rule="y is 3", fix="set y=3")


def test_raise_all_without_errors_does_nothing():
    raise_all([])


def test_one_error_is_raised_as_it_is():
    with pytest.raises(ConfigError) as raised:
        raise_all([ONE])
    assert raised.value is ONE


def test_several_errors_are_raised_as_one_that_names_all():
    with pytest.raises(ConfigErrors, match=r"set x=2(?s:.)*set y=3") as raised:
        raise_all([ONE, ConfigErrors([TWO, ONE])])
    assert raised.value.errors == (ONE, TWO, ONE)


def test_several_errors_cross_processes():
    copy = pickle.loads(pickle.dumps(ConfigErrors([ONE, TWO])))
    assert str(copy) == str(ConfigErrors([ONE, TWO]))
