from __future__ import annotations

import asyncio
import pickle
from types import SimpleNamespace

import pytest
from omegaconf import OmegaConf
from verl.workers.rollout.replica import TokenOutput

from verl_mas.rollout.adapter_client import AdapterClient
from verl_mas.rollout.cancellable import cancellable
from verl_mas.trainer.policies.servers import OnlyServerClient
from verl_mas.trainer.pools.phases import PhasedClient

CONFIG = OmegaConf.create({"actor_rollout_ref": {"rollout": {"name": "transformers"}}})


class Only(AdapterClient, OnlyServerClient):
    pass


class Phased(AdapterClient, PhasedClient):
    pass


class Remote:
    """A method of a Ray actor, which records its calls."""

    def __init__(self, answer):
        self.answer, self.calls = answer, []

    def remote(self, *args, **kwargs):
        self.calls.append((args, kwargs))
        future = asyncio.get_running_loop().create_future()
        future.set_result(self.answer)
        return future


def server():
    return SimpleNamespace(generate=Remote(TokenOutput(token_ids=[1], extra_fields={})))


def balancer(behind):
    fields = dict.fromkeys(("require_acquire_fields", "require_release_fields"), Remote([]))
    methods = {name: method for name, method in fields.items()}
    return SimpleNamespace(**methods, acquire_server=Remote(("id", behind)), release_server=Remote(None))


@pytest.mark.parametrize("kind", [AdapterClient, Only, Phased])
@pytest.mark.parametrize("wrap", [lambda client: client, cancellable])
def test_every_request_names_the_adapter_whatever_else_the_client_does(kind, wrap):
    async def scenario():
        behind = server()
        slices = SimpleNamespace(enter=Remote(None), leave=Remote(None))
        own = {Only: {"server": behind}, Phased: {"policy": "main", "slices": slices}}.get(kind, {})
        client = wrap(kind(config=CONFIG, load_balancer_handle=balancer(behind), adapter="verifier", **own))
        output = await client.generate(request_id="r", prompt_ids=[5], sampling_params={"top_k": 3})
        return output, behind.generate.calls, slices

    output, [(_, sent)], slices = asyncio.run(scenario())
    assert output.token_ids == [1]
    assert (sent["adapter"], sent["prompt_ids"], sent["sampling_params"]) == ("verifier", [5], {"top_k": 3})
    if kind is Phased:
        # The time slice is that of the base, which has the engines.
        assert [call for call, _ in slices.enter.calls] == [("main",)]
        assert len(slices.leave.calls) == 1


def test_a_client_keeps_its_adapter_on_the_way_to_another_process():
    client = Only(config=CONFIG, load_balancer_handle=None, adapter="verifier", server="server")
    assert pickle.loads(pickle.dumps(client)).adapter == "verifier"
