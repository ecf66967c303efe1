"""The client of all kinds of servers: how a request gets a server, names its adapter, waits, and is cancelled."""

import asyncio
import pickle
from types import SimpleNamespace

import pytest
import ray
from omegaconf import OmegaConf
from verl.workers.rollout.replica import TokenOutput

from verl_mas.rollout.team_client import Gate, TeamClient
from verl_mas.trainer.policies.servers import Servers
from verl_mas.workflow import Request
from verl_mas.workflow.clock import Clock, ended, start

CONFIG = OmegaConf.create({"actor_rollout_ref": {"rollout": {"name": "transformers"}}})


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
    return SimpleNamespace(**fields, acquire_server=Remote(("id", behind)), release_server=Remote(None))


@pytest.mark.parametrize("sliced", [False, True])
@pytest.mark.parametrize("alone", [False, True])
async def test_every_request_names_the_adapter_however_it_gets_its_server(sliced, alone):
    behind, slices = server(), SimpleNamespace(enter=Remote(None), leave=Remote(None))
    balance, given = balancer(behind), {"only_server": behind if alone else None}
    client = TeamClient(CONFIG, balance, adapter="verifier", slices=(slices, "main") if sliced else None, **given)
    output = await client.generate(request_id="r", prompt_ids=[5], sampling_params={"top_k": 3})
    [(_, sent)] = behind.generate.calls
    assert output.token_ids == [1]
    assert (sent["adapter"], sent["prompt_ids"], sent["sampling_params"]) == ("verifier", [5], {"top_k": 3})
    # The request enters the time slice of the base, which has the engines.
    assert [call for call, _ in slices.enter.calls] == [("main",)] * sliced
    assert len(slices.leave.calls) == sliced
    # With one server there is nothing to balance.
    assert len(balance.acquire_server.calls) == len(balance.release_server.calls) == (not alone)


def test_a_client_keeps_its_adapter_on_the_way_to_another_process():
    client = TeamClient(CONFIG, None, adapter="verifier", only_server="server")
    assert pickle.loads(pickle.dumps(client)).adapter == "verifier"


@pytest.mark.parametrize("adapter", [None, "one"])
@pytest.mark.parametrize("resumes", [False, True])
@pytest.mark.parametrize("handles", [["server"], ["one", "two"]])
def test_engines_are_asked_for_a_client_with_what_the_team_needs_of_it(handles, resumes, adapter):
    servers = Servers()
    servers.name, asked = "main", {}
    servers.llm_server_manager = SimpleNamespace(
        server_handles=handles, get_client=lambda kind, **given: asked.update(given) or kind(CONFIG, None, **given)
    )
    client = servers.client(adapter=adapter, resumes=resumes)
    assert (client.adapter, client.resumes) == (adapter, resumes)
    assert (client.only_server, client.slices) == ("server" if len(handles) == 1 else None, None)
    sliced = servers.client(adapter=adapter, slices="slices")
    assert (sliced.slices, sliced.adapter) == (("slices", "main"), adapter)


async def test_the_time_of_an_act_does_not_include_its_wait_for_the_time_slice():
    slices = SimpleNamespace(enter=SimpleNamespace(remote=lambda policy: asyncio.sleep(0.1)), leave=Remote(None))
    client = TeamClient(CONFIG, None, only_server=server(), slices=(slices, "a"))
    clock = Clock(0.05)
    assert await ended(start(client.generate("r", prompt_ids=[5], sampling_params={}), clock), clock)


async def test_a_request_that_is_cancelled_while_it_waits_for_its_time_slice_leaves_the_slice():
    admitted = asyncio.get_running_loop().create_future()
    slices = SimpleNamespace(enter=SimpleNamespace(remote=lambda policy: admitted), leave=Remote(None))
    client = TeamClient(CONFIG, None, only_server=server(), slices=(slices, "a"))
    request = asyncio.ensure_future(client.generate("r", prompt_ids=[5], sampling_params={}))
    await asyncio.sleep(0)
    request.cancel()
    await asyncio.wait([request])
    assert request.cancelled() and not slices.leave.calls
    admitted.set_result(None)
    await asyncio.sleep(0)
    assert len(slices.leave.calls) == 1


REQUEST = Request("a", "u_0", 0, [{"role": "user", "content": "q"}])


async def cancelled_act(client, started, n=1):
    act = asyncio.ensure_future(client.generate(REQUEST, n))
    while not started():
        await asyncio.sleep(0.05)
    act.cancel()
    await asyncio.gather(act, return_exceptions=True)
    await asyncio.sleep(0)


def test_cancelling_an_act_cancels_its_requests(policy, loop, monkeypatch):
    client, server = policy(lambda prompt, number: "x")
    waiting, cancelled = [], []

    def remote(**kwargs):
        waiting.append(loop.create_future())
        return waiting[-1]

    monkeypatch.setattr(server, "remote", remote)
    monkeypatch.setattr(ray, "cancel", cancelled.append)
    loop.run_until_complete(cancelled_act(client, lambda: len(waiting) == 2, n=2))
    assert cancelled == waiting


@pytest.mark.e2e
def test_a_real_actor_receives_the_cancellation(ray_here, policy, loop, monkeypatch):
    @ray.remote
    class Engine:
        def __init__(self):
            self.seen = []

        async def generate(self, **kwargs):
            try:
                self.seen.append("started")
                await asyncio.sleep(60)
            except asyncio.CancelledError:
                self.seen.append("cancelled")
                raise

        async def events(self):
            return self.seen

    engine = Engine.remote()
    ray.get(engine.events.remote())
    client, server = policy(lambda prompt, number: "x")
    monkeypatch.setattr(server, "remote", engine.generate.remote)

    loop.run_until_complete(cancelled_act(client, lambda: ray.get(engine.events.remote())))
    for _ in range(100):
        if len(seen := ray.get(engine.events.remote())) > 1:
            break
        loop.run_until_complete(asyncio.sleep(0.05))
    assert seen == ["started", "cancelled"]


async def test_requests_pass_an_open_gate_at_once_and_a_closed_one_in_their_order():
    gate, passed = Gate(), []

    async def request(name):
        await gate.passed()
        passed.append(name)

    await request("early")
    gate.close()
    gate.close()
    waiting = [asyncio.ensure_future(request(number)) for number in range(3)]
    await asyncio.sleep(0.01)
    assert passed == ["early"] and not gate.is_open
    gate.open()
    await asyncio.gather(*waiting)
    assert (passed, gate.closings) == (["early", 0, 1, 2], 1)
    # A request waits again if the gate closes before the request has passed.
    gate.close()
    late = asyncio.ensure_future(request("late"))
    await asyncio.sleep(0)
    gate.open()
    gate.close()
    await asyncio.sleep(0.01)
    assert not late.done()
    gate.open()
    await late
