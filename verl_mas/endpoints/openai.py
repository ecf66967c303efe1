"""A policy behind an OpenAI-compatible endpoint. Its acts have text but no tokens, so they are not training rows."""

from __future__ import annotations

import asyncio
import dataclasses
import os
from collections.abc import Iterator
from contextlib import contextmanager

import httpx

from verl_mas.config.schema import RemoteSpec
from verl_mas.endpoints.endpoint import check_endpoint, hidden, without_key
from verl_mas.endpoints.openai_messages import as_openai, calls_of, text_of
from verl_mas.endpoints.openai_stream import OPTIONS, Streamed
from verl_mas.errors import ConfigError, FaultKind, SessionFault, raise_all
from verl_mas.util.text import encodable
from verl_mas.workflow.client import Generation, Request
from verl_mas.workflow.codecs.json_block import JsonObject
from verl_mas.workflow.streaming import ON_TEXT

# The name that we share with verl -> the name of OpenAI.
RENAMED = {"max_new_tokens": "max_tokens"}


class OpenAIClient:
    """An LLMClient for an OpenAI-compatible endpoint.

    The key is read from the environment variable `api_key_env`, and is not stored anywhere else.
    """

    def __init__(
        self,
        base_url: str,
        model: str,
        *,
        api_key_env: str | None = None,
        timeout: float = RemoteSpec.timeout,
        concurrency: int = RemoteSpec.concurrency,
    ):
        # The types and ranges of the settings are those of a configured endpoint.
        RemoteSpec(base_url, model, api_key_env, timeout, concurrency)
        found = check_endpoint(base_url, api_key_env, "")
        raise_all(problem for problem in found if isinstance(problem, ConfigError))
        self.base_url, self.model = base_url.rstrip("/"), model
        self._key_variable, self._timeout, self._concurrency = api_key_env, timeout, concurrency
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
        answer = await self._post(self._body(request))
        choice, usage = answer["choices"][0], answer.get("usage") or {}
        message = choice["message"]
        calls = calls_of(message)
        return Generation(
            encodable(text_of(message)),
            choice.get("finish_reason"),
            sampled=usage.get("completion_tokens", 0),
            prompt_tokens=usage.get("prompt_tokens", 0),
            tool_calls=calls,
            # Also what the endpoint added, as some want it back.
            message={name: value for name, value in message.items() if value is not None} if calls else None,
        )

    async def _post(self, body: JsonObject) -> JsonObject:
        on_text = ON_TEXT.get()
        body = body if on_text is None else {**body, **OPTIONS}
        try:
            async with self._client().stream("POST", f"{self.base_url}/chat/completions", json=body) as response:
                if on_text is not None and response.headers.get("content-type", "").startswith("text/event-stream"):
                    with self._completion("events that end early or have another form"):
                        return _checked(await Streamed(on_text).read(response.aiter_lines()))
                await response.aread()
        except httpx.TransportError as error:
            cause = f"{type(error).__name__} from {self.base_url}: {error}"
            raise SessionFault(FaultKind.REFUSED, cause) from error
        # Cut after the key is hidden: half a key is not recognised.
        text = hidden(response.text, self._key)[:500]
        if response.is_error:
            raise SessionFault(FaultKind.REFUSED, f"HTTP {response.status_code} from {self.base_url}: {text}")
        with self._completion(text):
            return _checked(response.json())

    @contextmanager
    def _completion(self, found: str) -> Iterator[None]:
        """Around the reading of a completion: some endpoints send their errors with status 200."""
        try:
            yield
        except (ValueError, LookupError, TypeError, AttributeError):
            cause = f"the response of {self.base_url} is not a chat completion: {found}"
            raise SessionFault(FaultKind.REFUSED, cause) from None

    def _body(self, request: Request) -> JsonObject:
        sampling = {RENAMED.get(name, name): value for name, value in request.sampling.items()}
        if sampling.get("top_k") == -1:
            del sampling["top_k"]
        if request.greedy:
            sampling["temperature"] = 0.0
        if request.chat_template_kwargs:
            sampling["chat_template_kwargs"] = dict(request.chat_template_kwargs)
        if request.tools:
            sampling["tools"] = list(request.tools)
        return {"model": self.model, **sampling, "messages": as_openai(request.messages)}

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


def _checked(completion: JsonObject) -> JsonObject:
    message = completion["choices"][0]["message"]
    text_of(message), calls_of(message)
    return completion
