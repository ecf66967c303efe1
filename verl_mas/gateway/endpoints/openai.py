"""A policy behind an OpenAI-compatible endpoint. Its acts have text but no tokens, so they are not training rows."""

from __future__ import annotations

import base64
import io
import json
import os
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, cast

import httpx

from verl_mas.config.schema import RemoteSpec
from verl_mas.errors import ConfigError, FaultKind, SessionFault, raise_all
from verl_mas.gateway.endpoints.endpoint import check_endpoint, hidden, without_key
from verl_mas.gateway.streaming import ON_TEXT
from verl_mas.util.bodies import TooLong, body_of, bounded
from verl_mas.util.loops import PerLoop, together
from verl_mas.util.text import encodable
from verl_mas.workflow.client import Generation, Message, Request, ToolCall
from verl_mas.workflow.codecs import JsonObject
from verl_mas.workflow.marks import without_marks, written_out

if TYPE_CHECKING:
    from PIL.Image import Image

MAX_RESPONSE, MAX_CALLS = 64_000_000, 1000
RENAMED = {"max_new_tokens": "max_tokens"}  # a setting's name in verl and verl-mas -> its name in OpenAI's protocol


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
        # Check types and ranges in the same way as for an endpoint in the configuration.
        RemoteSpec(base_url, model, api_key_env, timeout, concurrency)
        problems = check_endpoint(base_url, api_key_env, "")
        raise_all(problem for problem in problems if isinstance(problem, ConfigError))
        self.base_url, self.model = base_url.rstrip("/"), model
        self._key_variable, self._timeout, self._concurrency = api_key_env, timeout, concurrency
        # Connections belong to an event loop, and each `verl_mas.run` starts a new event loop.
        self._http = PerLoop(self._client)

    @classmethod
    def of(cls, remote: RemoteSpec) -> OpenAIClient:
        """Make the client of `mas.policies.<name>.remote`."""
        return cls(**asdict(remote))

    async def generate(self, request: Request, n: int = 1) -> list[Generation]:
        request, forged = await without_marks(request)
        with without_key(self._key):
            # Not every server accepts `n`, so there are n requests.
            replies = await together([partial(self._post, self._body(request))] * n)
        return [replace(reply, forged_tokens=forged) for reply in replies]

    async def aclose(self) -> None:
        if (client := self._http.discard()) is not None:
            await client.aclose()

    @property
    def _key(self) -> str | None:
        return os.environ[self._key_variable] if self._key_variable else None

    async def _post(self, body: JsonObject) -> Generation:
        on_text = ON_TEXT.get()
        body = body if on_text is None else {**body, **OPTIONS}
        try:
            async with self._http.here().stream("POST", f"{self.base_url}/chat/completions", json=body) as response:
                if on_text is not None and response.headers.get("content-type", "").startswith("text/event-stream"):
                    with self._completion("events that end early or have another form"):
                        return generation_of(await Streamed(on_text).read(response.aiter_text()))
                answer = await body_of(response, MAX_RESPONSE)
        except (httpx.HTTPError, TooLong) as error:
            cause = f"{type(error).__name__} from {self.base_url}: {error}"
            raise SessionFault(FaultKind.REFUSED, cause) from error
        # Cut the text only after the key is hidden, because half a key is not recognised.
        text = hidden(answer.decode(errors="replace"), self._key)[:500]
        if response.is_error:
            raise SessionFault(FaultKind.REFUSED, f"HTTP {response.status_code} from {self.base_url}: {text}")
        with self._completion(text):
            return generation_of(json.loads(answer))

    @contextmanager
    def _completion(self, response: str) -> Iterator[None]:
        """Raise a fault that quotes the response if it is not a completion. Some endpoints send errors with status
        200."""
        try:
            yield
        except (ValueError, LookupError, TypeError, AttributeError, RecursionError):
            cause = f"the response of {self.base_url} is not a chat completion: {response}"
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
        headers = {"Authorization": f"Bearer {self._key}"} if self._key else {}
        limits = httpx.Limits(max_connections=self._concurrency)
        return httpx.AsyncClient(timeout=self._timeout, headers=headers, limits=limits)


async def _lines(parts: AsyncIterator[str]) -> AsyncIterator[str]:
    line: list[str] = []
    async for part in parts:
        first, *others = part.split("\n")
        line.append(first)
        for other in others:
            yield "".join(line)
            line = [other]
    yield "".join(line)


def generation_of(completion: JsonObject) -> Generation:
    """Read a chat completion. Raises LookupError, TypeError, AttributeError or ValueError for anything else."""
    choice, usage = completion["choices"][0], completion.get("usage") or {}
    message, reason = choice["message"], choice.get("finish_reason")
    if not isinstance(reason, str | None):
        raise TypeError(f"finish_reason is a {type(reason).__name__}")
    calls = calls_of(message)
    return Generation(
        encodable(text_of(message)),
        reason,
        sampled=_count(usage, "completion_tokens"),
        prompt_tokens=_count(usage, "prompt_tokens"),
        tool_calls=calls,
        # Keep the fields that the endpoint added. Some endpoints require them when the message is sent back.
        message={name: value for name, value in message.items() if value is not None} if calls else None,
    )


def _count(usage: Mapping[str, object], name: str) -> int:
    number = usage.get(name) or 0
    if not isinstance(number, int) or number < 0:
        raise ValueError(f"{name} is {number!r}")
    return number


def text_of(message: Mapping[str, object]) -> str:
    """Return the text of a message from an endpoint, which may be in parts. Raises TypeError or AttributeError for
    other contents."""
    content = message.get("content") or ""
    if isinstance(content, list):
        content = "".join(part.get("text", "") for part in content)
    if not isinstance(content, str):
        raise TypeError(f"content is a {type(content).__name__}")
    return content


def calls_of(message: Mapping[str, object]) -> list[ToolCall]:
    """Return the calls in a message from an endpoint. Raises LookupError, TypeError or AttributeError if they are
    malformed."""
    calls = cast(Sequence[JsonObject], message.get("tool_calls") or ())
    return [
        ToolCall(str(call["function"]["name"]), _arguments(call["function"]), call.get("id") or None) for call in calls
    ]


def _arguments(function: JsonObject) -> str:
    """Return the arguments as the model wrote them. Some endpoints send an object instead, or nothing for a call
    without arguments."""
    arguments = function.get("arguments")
    return arguments if isinstance(arguments, str) and arguments else json.dumps(arguments or {})


def as_openai(messages: Sequence[Message]) -> list[Message]:
    """Convert messages for an endpoint. Tool calls get fields that chat templates do not need: an id, which their
    results repeat, and arguments as JSON text."""
    converted: list[Message] = []
    open_calls: list[str] = []
    for index, message in enumerate(messages):
        message = {**message, "content": _content(message.get("content"))}
        if calls := message.get("tool_calls"):
            message["tool_calls"] = [_call(call, f"call_{index}_{number}") for number, call in enumerate(calls)]
            open_calls = [call["id"] for call in message["tool_calls"]]
        elif message["role"] == "tool" and open_calls:
            # Results come in the order of their calls.
            message.setdefault("tool_call_id", open_calls[0])
            if message["tool_call_id"] in open_calls:
                open_calls.remove(message["tool_call_id"])
        converted.append(message)
    return converted


def _call(call: JsonObject, name: str) -> JsonObject:
    function = call["function"]
    return {
        "type": "function",
        **call,
        "id": call.get("id") or name,
        "function": {**function, "arguments": _json(function.get("arguments"))},
    }


def _json(arguments: object) -> str:
    """Convert the arguments of a call to JSON text. Arguments that are not JSON are wrapped in an object, because an
    endpoint refuses them even if its own model wrote them. The endpoint decodes the JSON before it renders the prompt,
    so special tokens that the arguments spell out would become real marks of turns. They are changed to ordinary
    text."""
    given, whole = arguments or {}, {"invalid": arguments}
    with suppress(ValueError, RecursionError):
        given = json.loads(arguments) if isinstance(arguments, str) else given
        whole, _ = written_out(given if isinstance(given, dict) else whole)
    return arguments if isinstance(arguments, str) and whole == given else json.dumps(whole)


def _content(content: object) -> object:
    if not isinstance(content, list):
        return content
    return [_image(part["image"]) if part.get("type") == "image" else part for part in content]


def _image(image: object) -> JsonObject:
    """Convert a PIL image, or the URL of an image, to a part of a message."""
    url = image
    if not isinstance(image, str):
        file = io.BytesIO()
        cast("Image", image).save(file, "PNG")
        url = "data:image/png;base64," + base64.b64encode(file.getvalue()).decode()
    return {"type": "image_url", "image_url": {"url": url}}


DATA, DONE = "data:", "[DONE]"
# Options that request a stream of events. The last event of the stream has the numbers of tokens.
OPTIONS = {"stream": True, "stream_options": {"include_usage": True}}


@dataclass
class Streamed:
    """Collects the events of one completion. Raises LookupError, TypeError, AttributeError or ValueError for an event
    that does not belong to a chat completion."""

    on_text: Callable[[str], None]
    message: JsonObject = field(default_factory=lambda: {"role": "assistant", "content": ""})
    finish_reason: str | None = None
    usage: JsonObject | None = None
    events: int = 0

    async def read(self, parts: AsyncIterator[str]) -> JsonObject:
        """Read the parts of a streamed completion, and return it in the form of a completion that is not streamed."""
        async for line in _lines(bounded(parts, MAX_RESPONSE)):
            if not line.startswith(DATA) or (data := line.removeprefix(DATA).strip()) == DONE:
                continue
            self._add(json.loads(data))
        if not self.events:
            raise ValueError("no event of a chat completion")
        choice = {"index": 0, "message": self.message, "finish_reason": self.finish_reason}
        return {"choices": [choice], "usage": self.usage}

    def _add(self, event: JsonObject) -> None:
        self.usage = event.get("usage") or self.usage
        # The last event may have only the usage.
        for choice in event["choices"]:
            self.events += 1
            self.finish_reason = choice.get("finish_reason") or self.finish_reason
            for name, value in (choice.get("delta") or {}).items():
                self._extend(name, value)

    def _extend(self, name: str, value: object) -> None:
        if name == "tool_calls":
            for part in value or ():  # type: ignore[attr-defined]
                self._call(part)
        elif isinstance(value, str) and name != "role":
            text = encodable(value)
            self.message[name] = (self.message.get(name) or "") + text
            if name == "content" and text:
                self.on_text(text)

    def _call(self, part: JsonObject) -> None:
        calls: list[JsonObject] = self.message.setdefault("tool_calls", [])
        if int(part["index"]) > MAX_CALLS:
            raise ValueError(f"call number {part['index']}")
        while len(calls) <= int(part["index"]):
            calls.append({"id": None, "type": "function", "function": {"name": "", "arguments": ""}})
        call, function = calls[part["index"]], part.get("function") or {}
        call["id"] = part.get("id") or call["id"]
        for name in ("name", "arguments"):
            call["function"][name] += function.get(name) or ""
