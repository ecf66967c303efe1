import pickle

import pytest

from verl_mas.errors import ConfigError, ConfigErrors, raise_all

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
