"""The protocol of OpenAI's Chat Completions API."""

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from verl_mas.gateway.dialect import DIALECTS, ApiError, Asked, Fields, Served, content_of, event, with_schema
from verl_mas.gateway.endpoints.openai import calls_of
from verl_mas.gateway.streaming import Usage
from verl_mas.workflow.client import Message, ToolCall, as_call
from verl_mas.workflow.codecs import JsonObject
from verl_mas.workflow.record import sampled_of

ROLES = {"system": "system", "developer": "system", "user": "user", "assistant": "assistant", "tool": "tool"}
INSTEAD = {
    "functions": "use tools",
    "function_call": "use tool_choice",
    "top_logprobs": "a row has the log-probs of the sampled tokens alone",
    "audio": "agents reply in text",
    "continue_final_message": "a reply is a new message",
    "web_search_options": "give a tool that searches",
}
DONE = event("[DONE]")


def read_messages(given: Sequence[object]) -> list[Message]:
    if not given:
        raise ApiError(400, "no messages; they are a list of at least one", param="messages")
    return [_message(message, f"messages[{number}]") for number, message in enumerate(given)]


def _message(given: object, where: str) -> Message:
    if not isinstance(given, dict) or str(given.get("role")) not in ROLES:
        raise ApiError(400, f"{where} is not an object with a role of {', '.join(ROLES)}", param=where)
    content = given.get("content")
    if content is None and given["role"] != "assistant":
        raise ApiError(400, f"{where}.content is neither text nor a list of texts", param=where)
    text = content_of(given["role"], content, f"{where}.content", ("text", "refusal"))
    # Other fields of a message, which some clients add, are not part of the prompt.
    kept = {name: given[name] for name in ("name", "tool_call_id") if given.get(name) is not None}
    message = {"role": ROLES[given["role"]], "content": text, **kept}
    calls = given.get("tool_calls") or []
    if not isinstance(calls, list) or not all(_is_call(call) for call in calls):
        raise ApiError(400, f"{where}.tool_calls is not a list of calls of functions", param=where)
    return {**message, "tool_calls": [as_call(call) for call in calls_of(given)]} if calls else message


def _is_call(call: object) -> bool:
    function = call.get("function") if isinstance(call, dict) else None
    return isinstance(function, dict) and isinstance(function.get("name"), str)


class Chat:
    path = "/v1/chat/completions"

    def read(self, body: Fields) -> Asked:
        body.refuse(INSTEAD)
        schema = Fields(body.take("response_format", dict, {})).take("json_schema", dict | None, {}) or {}
        tools, choice = body.take("tools", list[JsonObject], []), body.take("tool_choice", str | dict, "auto")
        stop = body.take("stop", str | list[str], [])
        return Asked(
            model=body.take("model", str),
            messages=with_schema(read_messages(body.take("messages", list)), schema.get("schema")),
            tools=() if choice == "none" else tools,
            max_tokens=body.take_limit("max_tokens", "max_completion_tokens"),
            stop=[stop] if isinstance(stop, str) else stop,
            stream=body.take("stream", bool, False),
            include_usage=bool(body.take("stream_options", dict, {}).get("include_usage")),
            logprobs=body.take("logprobs", bool, False),
            schema=schema.get("schema"),
            unused=body.left,
        )

    def whole(self, asked: Asked, served: Served) -> JsonObject:
        calls = {"tool_calls": [_call(call) for call in served.calls]} if served.calls else {}
        message = {"role": "assistant", "content": served.text or (None if calls else ""), "refusal": None, **calls}
        choice = chosen(message, _reason(served)) | {"logprobs": _log_probs(served) if asked.logprobs else None}
        return ChatWriter(asked.model, served.id).completion([choice], served.usage)

    def events(self, asked: Asked, served: Served) -> Iterator[str]:
        writer = ChatWriter(asked.model, served.id)
        log_probs = _log_probs(served) if asked.logprobs else None
        yield writer.piece({"role": "assistant", "content": served.text}, logprobs=log_probs)
        # Send one chunk per call, because clients read only the first call of a chunk.
        for i, call in enumerate(served.calls):
            yield writer.piece({"tool_calls": [{"index": i, **_call(call)}]})
        yield writer.piece({}, finish_reason=_reason(served))
        if asked.include_usage:
            yield writer.chunk({"choices": [], "usage": usage_of(served.usage)})
        yield DONE


def _reason(served: Served) -> str:
    return "length" if served.reply.truncated else "tool_calls" if served.calls else "stop"


def _call(call: ToolCall) -> JsonObject:
    return {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}


def _log_probs(served: Served) -> JsonObject | None:
    """List the log-probs of the sampled tokens, named by id as vLLM does with `return_tokens_as_token_ids`."""
    found = zip(*sampled_of(served.reply), strict=True)
    each: list[JsonObject] = [
        {"token": f"token_id:{i}", "logprob": p, "bytes": None, "top_logprobs": []} for i, p in found
    ]
    return {"content": each, "refusal": None} if each else None


# -- also used by verl_mas.results.serve, the server of a trained team


@dataclass
class ChatWriter:
    """Formats the completion or the chunks of one reply as OpenAI's objects."""

    model: str
    id: str
    created: int = field(default_factory=lambda: int(time.time()))

    def completion(self, choices: Sequence[JsonObject], usage: Usage, more: JsonObject | None = None) -> JsonObject:
        return {**self._head("chat.completion"), "choices": choices, "usage": usage_of(usage), **(more or {})}

    def piece(self, delta: JsonObject, **more: object) -> str:
        empty = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": None}
        return self.chunk({"choices": [{**empty, **more}]})

    def chunk(self, fields: JsonObject) -> str:
        return event({**self._head("chat.completion.chunk"), **fields})

    def _head(self, kind: str) -> JsonObject:
        return {"id": self.id, "object": kind, "created": self.created, "model": self.model}


def chosen(message: JsonObject, finish_reason: str, index: int = 0) -> JsonObject:
    return {"index": index, "message": message, "logprobs": None, "finish_reason": finish_reason}


def usage_of(usage: Usage) -> JsonObject:
    total = usage.prompt + usage.completion
    return {"prompt_tokens": usage.prompt, "completion_tokens": usage.completion, "total_tokens": total}


DIALECTS.register("chat")(Chat())
