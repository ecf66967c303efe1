"""A policy behind an OpenAI-compatible endpoint. Its acts have text but no tokens, so they are not training rows."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import os
from collections.abc import Mapping, Sequence
from typing import Protocol

import httpx

from verl_mas.config.schema import RemoteSpec
from verl_mas.errors import ConfigError, FaultKind, SessionFault, failures, raise_all
from verl_mas.registry import nearest
from verl_mas.workflow.client import Generation, Message, Request
from verl_mas.workflow.codecs.json_block import JsonObject
from verl_mas.workflow.endpoint import check_endpoint, hidden, without_key

# The name that we share with verl -> the name of OpenAI.
RENAMED = {"max_new_tokens": "max_tokens"}


class SchemaModel(Protocol):
    """verl's pydantic model of OpenAI's tool schema."""

    def model_dump(self, *, exclude_unset: bool, exclude_none: bool) -> JsonObject: ...


class Tool(Protocol):
    """A tool such as verl's FunctionTool. `tool_schema` is OpenAI's, as a mapping or as verl's model of it."""

    name: str

    @property
    def tool_schema(self) -> JsonObject | SchemaModel: ...

    async def call(self, parameters: JsonObject) -> object: ...


class OpenAIClient:
    """An LLMClient for an OpenAI-compatible endpoint.

    The key is read from the environment variable `api_key_env`, and is not stored anywhere else.

    `tools` are called for agents that list them by name, in at most `max_tool_rounds` rounds per act.
    """

    def __init__(
        self,
        base_url: str,
        model: str,
        *,
        api_key_env: str | None = None,
        timeout: float = RemoteSpec.timeout,
        concurrency: int = RemoteSpec.concurrency,
        tools: Sequence[Tool] = (),
        max_tool_rounds: int = 8,
    ):
        # The types and ranges of the settings are those of a configured endpoint.
        RemoteSpec(base_url, model, api_key_env, timeout, concurrency)
        found = check_endpoint(base_url, api_key_env, "")
        raise_all(problem for problem in found if isinstance(problem, ConfigError))
        self.base_url, self.model = base_url.rstrip("/"), model
        self._key_variable, self._timeout, self._concurrency = api_key_env, timeout, concurrency
        self._tools = {tool.name: tool for tool in tools}
        self._max_tool_rounds = max_tool_rounds
        self._http: httpx.AsyncClient | None = None
        self._loop: asyncio.AbstractEventLoop | None = None

    @classmethod
    def of(cls, remote: RemoteSpec) -> OpenAIClient:
        """From `mas.policies.<name>.remote`."""
        return cls(**dataclasses.asdict(remote))

    async def generate(self, request: Request, n: int = 1) -> list[Generation]:
        # Not every server accepts `n`, so there are n requests.
        tasks = [asyncio.ensure_future(self._complete(request)) for _ in range(n)]
        try:
            with without_key(self._key):
                return list(await asyncio.gather(*tasks))
        finally:
            for task in tasks:
                task.cancel()

    async def aclose(self) -> None:
        if self._http is not None:
            await self._http.aclose()
            self._http = None

    @property
    def _key(self) -> str | None:
        return os.environ[self._key_variable] if self._key_variable else None

    async def _complete(self, request: Request) -> Generation:
        tools = self._tools_of(request)
        messages, sampled = list(request.messages), 0
        for _ in range(self._max_tool_rounds if tools else 1):
            answer = await self._post({**self._body(request, tools), "messages": messages})
            choice, usage = answer["choices"][0], answer.get("usage") or {}
            sampled += usage.get("completion_tokens", 0)
            calls = choice["message"].get("tool_calls") or []
            if not calls:
                break
            messages = [*messages, choice["message"], *await asyncio.gather(*[_result(call, tools) for call in calls])]
        return Generation(choice["message"].get("content") or "", choice.get("finish_reason"), sampled=sampled)

    async def _post(self, body: JsonObject) -> JsonObject:
        response = await self._client().post(f"{self.base_url}/chat/completions", json=body)
        # Cut after the key is hidden: half a key is not recognised.
        text = hidden(response.text, self._key)[:500]
        if response.is_error:
            raise SessionFault(FaultKind.REFUSED, f"HTTP {response.status_code} from {self.base_url}: {text}")
        try:
            completion: JsonObject = response.json()
            completion["choices"][0]["message"].get("content")
        except (ValueError, LookupError, TypeError, AttributeError):
            # Some endpoints send their errors with status 200.
            cause = f"the response of {self.base_url} is not a chat completion: {text}"
            raise SessionFault(FaultKind.REFUSED, cause) from None
        return completion

    def _tools_of(self, request: Request) -> dict[str, Tool]:
        for name in request.tools:
            if name not in self._tools:
                raise ConfigError(
                    f"agent {request.agent} has the tool {name!r}",
                    rule="without verl, an agent can use the tools that its client was constructed with",
                    fix=f"pass it to OpenAIClient(tools=[...]); {nearest(name, list(self._tools))}",
                )
        return {name: self._tools[name] for name in request.tools}

    def _body(self, request: Request, tools: Mapping[str, Tool]) -> JsonObject:
        sampling = {RENAMED.get(name, name): value for name, value in request.sampling.items()}
        if sampling.get("top_k") == -1:
            del sampling["top_k"]
        if request.greedy:
            sampling["temperature"] = 0.0
        if request.chat_template_kwargs:
            sampling["chat_template_kwargs"] = dict(request.chat_template_kwargs)
        if tools:
            sampling["tools"] = [_schema(tool) for tool in tools.values()]
        return {"model": self.model, **sampling}

    def _client(self) -> httpx.AsyncClient:
        """Connections belong to an event loop, and each `verl_mas.run` starts a new one."""
        loop = asyncio.get_running_loop()
        if self._http is None or self._loop is not loop:
            self._http = httpx.AsyncClient(
                timeout=self._timeout,
                headers={"Authorization": f"Bearer {self._key}"} if self._key else {},
                limits=httpx.Limits(max_connections=self._concurrency),
            )
            self._loop = loop
        return self._http


async def _result(call: JsonObject, tools: Mapping[str, Tool]) -> Message:
    """The message with the result of a call or with its error; the model gets either, as in verl's rollout."""
    name = call["function"]["name"]
    try:
        with failures():
            text = _text(await tools[name].call(json.loads(call["function"]["arguments"])))
    except SessionFault as failed:
        text = f"Error executing tool '{name}': {failed.cause}"
    return {"role": "tool", "tool_call_id": call.get("id"), "content": text}


def _text(result: object) -> str:
    """A tool of verl returns a text, a mapping, a response with a text, or a tuple that starts with one of these."""
    first = result[0] if isinstance(result, tuple) else result
    first = getattr(first, "text", first)
    return json.dumps(first, ensure_ascii=False) if isinstance(first, dict) else str(first)


def _schema(tool: Tool) -> JsonObject:
    schema = tool.tool_schema
    return schema if isinstance(schema, dict) else schema.model_dump(exclude_unset=True, exclude_none=True)
