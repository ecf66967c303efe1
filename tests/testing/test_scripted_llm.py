"""The scripted LLM replies by its rules."""

import asyncio

import pytest

from verl_mas.testing.scripted_llm import ScriptedLLM, calls
from verl_mas.workflow import Request


def generate(llm, agent="a", n=1, turn=0):
    return asyncio.run(llm.generate(Request(agent, "s", turn, [{"role": "user", "content": "q"}]), n))


def say(*arguments, **settings):
    return [generation.text for generation in generate(*arguments, **settings)]


def test_texts_are_used_in_order_per_agent_and_the_last_one_repeats():
    llm = ScriptedLLM({"a": ["1", "2"], "b": "x"})
    assert [say(llm), say(llm, "b"), say(llm), say(llm)] == [["1"], ["x"], ["2"], ["2"]]
    assert say(ScriptedLLM(["1", "2", "3"]), n=3) == ["1", "2", "3"]
    # A function sees the request and the branch.
    llm = ScriptedLLM(lambda request, branch: f"{request.agent}{request.turn}{branch}")
    assert say(llm, "z", 2, turn=4) == ["z40", "z41"]


def test_faults_and_latencies_come_from_functions_too():
    fail = {1: ValueError("no")}
    llm = ScriptedLLM("x", latency=lambda rng: rng.random() / 1000, fault=lambda request: fail.get(request.turn))
    assert say(llm) == ["x"]
    with pytest.raises(ValueError, match="no"):
        say(llm, turn=1)
    assert llm.in_flight == 0 and len(llm.requests) == 2


def test_a_token_is_a_byte_and_a_reply_can_call_tools():
    (generation,) = generate(ScriptedLLM("hé"))
    assert bytes(generation.prompt_ids) == b"<user>q<assistant>"
    assert bytes(generation.response_ids) == "hé".encode() and generation.response_mask == [1, 1, 1]
    (generation,) = generate(ScriptedLLM([calls(("press", {"button": "rot"}), ("look", "{"), text="See:"), "x"]))
    assert [(call.id, call.name, call.arguments) for call in generation.tool_calls] == [
        ("call_0", "press", '{"button": "rot"}'),
        ("call_1", "look", "{"),
    ]
    assert generation.text == "See:" and bytes(generation.response_ids) == b'See:<press>{"button": "rot"}<look>{'
