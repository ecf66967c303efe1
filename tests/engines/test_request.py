from __future__ import annotations

import pickle

import pytest

from verl_mas.engines.transformers import server_name
from verl_mas.engines.transformers.request import Sampling
from verl_mas.errors import RequestError


def test_verls_sampling_parameters_are_read():
    sampling = Sampling.parse(
        dict(temperature=0.5, top_p=0.9, top_k=-1, repetition_penalty=1.0, max_tokens=4, stop="x", stop_token_ids=[7])
    )
    assert sampling == Sampling(max_tokens=4, temperature=0.5, top_p=0.9, stop=("x",), stop_token_ids=(7,))


def test_none_means_the_default():
    assert Sampling.parse(dict(max_tokens=4, stop=None, seed=None, top_k=None)) == Sampling(max_tokens=4)


def test_an_unknown_parameter_is_refused_not_ignored():
    with pytest.raises(RequestError, match="min_p"):
        Sampling.parse(dict(max_tokens=4, min_p=0.1))


@pytest.mark.parametrize(
    "wrong",
    [
        dict(max_tokens=0),
        dict(temperature=-1),
        dict(top_p=0),
        dict(top_p=1.1),
        dict(top_k=-2),
        dict(n=0),
        dict(repetition_penalty=0),
    ],
)
def test_values_out_of_range_are_refused_by_name(wrong):
    with pytest.raises(RequestError, match=next(iter(wrong))) as caught:
        Sampling.parse({"max_tokens": 4, **wrong})
    assert str(pickle.loads(pickle.dumps(caught.value))) == str(caught.value)


def test_server_names_differ_by_policy_and_replica():
    names = {server_name(policy, replica) for policy in ("main", "critic") for replica in (0, 1)}
    assert len(names) == 4 and "transformers_server_main_0" in names
