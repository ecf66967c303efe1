"""The endpoint, with requests as clients send them."""

import asyncio
import json
from contextlib import AsyncExitStack, asynccontextmanager

import httpx
import pytest
from gateway_sessions import opened

from verl_mas.errors import EngineLost, FaultKind, SessionFault
from verl_mas.gateway import server
from verl_mas.testing.scripted_llm import ScriptedLLM, calls
from verl_mas.util import http_server

CLIENT = {"trust_env": False, "timeout": 60.0}
CHAT, RESPONSES, MESSAGES = "/v1/chat/completions", "/v1/responses", "/v1/messages"


def body(text: str = "q", **more: object) -> dict[str, object]:
    return {"model": "solver", "messages": [{"role": "user", "content": text}], **more}


@asynccontextmanager
async def asked(replies="4", **how):
    async with opened(replies, **how) as team, server.served(team.gateway) as address:
        headers = {"Authorization": f"Bearer {team.gateway.key}"}
        async with httpx.AsyncClient(base_url=address, headers=headers, **CLIENT) as client:
            yield team, client


async def test_each_protocol_reaches_the_same_agent_without_a_line_per_request(caplog):
    caplog.set_level("INFO")
    async with asked(["a", calls(("add", {"a": 1})), "c"]) as (team, client):
        chat = (await client.post(CHAT, json=body())).json()
        assert chat["choices"][0]["message"]["content"] == "a" and chat["model"] == "solver"
        functions = [{"type": "function", "name": "add", "parameters": {}}]
        ask = {"model": "solver", "input": "q", "tools": functions}
        [item] = (await client.post(RESPONSES, json=ask)).json()["output"]
        assert (item["name"], item["arguments"]) == ("add", '{"a": 1}')
        key = {"x-api-key": client.headers.pop("Authorization").removeprefix("Bearer ")}
        [block] = (await client.post(MESSAGES, json=body(max_tokens=9), headers=key)).json()["content"]
        assert block == {"type": "text", "text": "c"} and len(team.session.replies) == 3
    assert "uvicorn.access" not in {record.name for record in caplog.records}


async def test_connections_without_a_request_are_closed_while_a_session_runs(monkeypatch):
    monkeypatch.setattr(http_server, "HEAD_S", 0.3)
    async with asked() as (_, client):
        reader, writer = await asyncio.open_connection(client.base_url.host, client.base_url.port)
        assert (await client.post(CHAT, json=body())).status_code == 200
        assert await asyncio.wait_for(reader.read(), 10) == b""
        writer.close()


async def test_a_stream_has_the_reply_and_a_failed_act_has_a_status():
    fault = SessionFault(FaultKind.REFUSED, "no engine")
    async with asked(ScriptedLLM("4", fault=lambda request: fault if request.turn else None)) as (_, client):
        reply = await client.post(CHAT, json=body(stream=True, stream_options={"include_usage": True}))
        assert reply.headers["content-type"].startswith("text/event-stream")
        *lines, done = [line.removeprefix("data: ") for line in reply.text.splitlines() if line]
        assert done == "[DONE]" and json.loads(lines[0])["choices"][0]["delta"]["content"] == "4"
        assert json.loads(lines[-1])["usage"]["completion_tokens"] == 1
        assert (await client.post(CHAT, json=body(stream=True))).status_code == 502


async def test_a_session_ends_with_its_key_and_the_server_with_its_last_session():
    async with AsyncExitStack() as stack:
        one, other = [await stack.enter_async_context(opened()) for _ in range(2)]
        await stack.enter_async_context(server.served(other.gateway))
        address = await stack.enter_async_context(server.served(one.gateway))
        client = await stack.enter_async_context(httpx.AsyncClient(base_url=address, **CLIENT))
        keys = [
            {"Authorization": f"Bearer {key}".encode()} for key in (one.gateway.key, other.gateway.key, "none", "ö")
        ]
        found = [await client.get("/v1/models", headers=key) for key in keys]
        assert [each.status_code for each in found] == [200, 200, 401, 401]
        assert [model["id"] for model in found[0].json()["data"]] == ["solver", "critic"]
        await one.gateway.close()
        late = await client.post(CHAT, json=body(), headers=keys[0])
        assert late.status_code == 401 and late.headers["x-should-retry"] == "false"
    async with httpx.AsyncClient(base_url=address, **CLIENT) as client:
        with pytest.raises(httpx.ConnectError):
            await client.get("/v1/models")


@pytest.mark.parametrize(
    ("fault", "status", "code"),
    [
        (SessionFault(FaultKind.TIMEOUT, "late"), 504, "timeout"),
        (SessionFault(FaultKind.LIMIT, "long"), 400, "context_length_exceeded"),
        (EngineLost("gone: a secret place"), 503, "engine_lost"),
        (RuntimeError("Traceback"), 502, "refused"),
    ],
)
async def test_a_fault_has_a_status_one_sentence_and_is_not_to_be_repeated(fault, status, code):
    async with asked(ScriptedLLM("4", fault=lambda _: fault)) as (team, client):
        reply = await client.post(CHAT, json=body())
        error = reply.json()["error"]
        assert (reply.status_code, error["code"], reply.headers["x-should-retry"]) == (status, code, "false")
        assert "\n" not in error["message"] and "secret place" not in error["message"] and team.gateway.fault


@pytest.mark.parametrize(
    ("method", "path", "send", "status"),
    [
        ("GET", "/v1/models/gpt-9", {}, 404),
        ("POST", "/agents/editor/v1/chat/completions", {"json": body()}, 404),
        ("POST", CHAT, {"json": body(tools=[{"type": "function", "function": {"name": "a", "parameters": 5}}])}, 400),
        ("POST", MESSAGES, {"json": {"model": "solver"}}, 400),
        ("GET", "/v1/models", {"headers": {"Host": "evil.example"}}, 403),
    ],
)
async def test_a_request_that_cannot_be_an_act_is_refused(method, path, send, status):
    async with asked() as (_, client):
        reply = await client.request(method, path, **send)
        assert reply.status_code == status and reply.json()["type"] == "error" and reply.json()["error"]["message"]


@pytest.mark.parametrize(
    "path",
    ["/chat/completions", "/v1/v1/chat/completions/", "/openai/deployments/gpt-9/chat/completions?api-version=1"],
)
async def test_an_address_may_lack_the_version_and_have_the_agent(path):
    async with asked() as (team, client):
        key = {"api-key": client.headers.pop("Authorization").removeprefix("Bearer ")}
        ask = {"json": {**body(), "model": "gpt-9"}, "headers": key}
        assert (await client.post(f"/agents/critic{path}", **ask)).json()["model"] == "gpt-9"
        assert [reply.agent for reply in team.session.replies] == ["critic"]
        ask["json"].pop("model")  # clients of Azure omit the model
        assert (await client.post("/deployments/critic/chat/completions", **ask)).json()["model"] == "critic"


async def test_a_client_can_list_the_models_and_count_tokens():
    async with asked() as (team, client):
        assert (await client.get("/v1/models/critic")).json()["id"] == "critic"
        assert (await client.post(f"{MESSAGES}/count_tokens", json=body("x" * 400))).json()["input_tokens"] > 100
        refused = (await client.post("/v1/embeddings", json={})).json()["error"]["message"]
        assert "its own base URL" in refused and team.gateway.fault is None


async def test_a_thread_of_anthropics_client_is_refused_and_decides_nothing():
    async with asked() as (team, client):
        thread = await client.post(MESSAGES, json=body(thread={"type": "continue", "previous_message_id": "act_1"}))
        assert thread.status_code == 400
        assert thread.json()["error"]["details"] == {"error_code": "thread_unsupported_request"}
        assert (await client.post(MESSAGES, json=body())).status_code == 200 and team.gateway.fault is None


async def test_an_item_of_a_reply_is_named_in_the_next_request():
    async with asked(["a", "b"]) as (team, client):
        [item] = (await client.post(RESPONSES, json={"model": "solver", "input": "q"})).json()["output"]
        known = [{"role": "user", "content": "q"}, {"type": "item_reference", "id": item["id"]}]
        await client.post(RESPONSES, json={"model": "solver", "input": [*known, {"role": "user", "content": "r"}]})
        assert team.rows == [["a", "b"]]


async def test_a_body_that_is_too_long_is_refused(monkeypatch):
    monkeypatch.setattr(server, "MAX_BODY", 1000)
    async with asked() as (team, client):
        reply = await client.post(CHAT, json=body("x" * 2000))
        assert reply.status_code == 413 and "1,000 bytes" in team.gateway.fault.cause


async def test_a_client_whose_time_is_up_gets_the_same_act_when_it_asks_again():
    async with asked(ScriptedLLM("4", latency=0.1)) as (team, client):
        with pytest.raises(httpx.ReadTimeout):
            await client.post(CHAT, json=body(), timeout=httpx.Timeout(60.0, read=0.03))
        reply = await client.post(CHAT, json=body(), headers={"x-stainless-retry-count": "1"})
        assert reply.json()["choices"][0]["message"]["content"] == "4"
        assert len(team.llm.requests) == 1 and team.rows == [["4"]]
