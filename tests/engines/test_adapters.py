import asyncio

import pytest

from verl_mas.engines.adapters import AdapterServer, by_policy, current_adapter, require, stream_name
from verl_mas.errors import EngineLost, RequestError

POLICIES = ["solver", "verifier"]


async def test_requests_at_the_same_time_keep_their_own_adapter():
    class Server:
        async def generate(self):
            await asyncio.sleep(0)
            return current_adapter.get()

    class Team(AdapterServer, Server):
        adapters, updates = dict.fromkeys(POLICIES), 1

    asked = ["solver", None, "verifier"]
    assert await asyncio.gather(*[Team().generate(adapter=adapter) for adapter in asked]) == asked
    assert await Team().generate(adapter="solver") == "solver" and current_adapter.get() is None


@pytest.mark.parametrize(
    ("known", "ready", "says"),
    [
        (POLICIES, True, "the engine has solver, verifier"),
        ([], True, "the engine has no adapters"),
        (["judge"], False, "has not received its weights"),
    ],
)
def test_a_request_for_weights_that_are_not_there_is_refused_and_the_bare_base_needs_none(known, ready, says):
    require(None, known, ready)
    with pytest.raises(RequestError, match=says):
        require("judge", known, ready)


def test_a_push_is_split_by_policy_wherever_its_tensors_are_in_the_stream():
    stream = [(stream_name(policy, key), f"{policy} {key}") for key in ("A", "B") for policy in POLICIES]
    assert by_policy(stream, POLICIES) == {policy: {key: f"{policy} {key}" for key in "AB"} for policy in POLICIES}


@pytest.mark.parametrize(
    ("name", "says"),
    [
        (stream_name("solver", "A"), "nothing of verifier"),
        (stream_name("judge", "A"), "weights of judge, and the engine has solver, verifier"),
        ("layers.0.weight", "weights of layers.0.weight, and"),
    ],
)
def test_a_push_of_other_weights_than_the_engine_has_ends_the_run(name, says):
    with pytest.raises(EngineLost, match=says):
        by_policy([(name, None)], POLICIES)
