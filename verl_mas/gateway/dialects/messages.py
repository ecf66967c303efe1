"""The protocol of Anthropic's Messages API."""

import json
from collections.abc import Iterator, Sequence

from verl_mas.gateway.dialect import DIALECTS, ApiError, Asked, Fields, Served, content_of, event, tool, with_schema
from verl_mas.workflow.client import Message, ToolCall, as_call
from verl_mas.workflow.codecs import JsonObject

INSTEAD = {"mcp_servers": "give tools", "container": "give a tool that runs programs"}
ROLES = ("user", "assistant", "system")
# Arguments of calls must be JSON objects in this protocol. Other arguments are sent as the value of this key, which no
# tool has as an argument.
INVALID = "not_a_json_object"
# Blocks of a reply that are not part of its transcript.
THOUGHTS = ("thinking", "redacted_thinking")


def read_message(given: object, where: str) -> Iterator[Message]:
    """Convert one of Anthropic's messages to messages of Chat Completions, in which each tool result is a separate
    message."""
    role = given.get("role") if isinstance(given, dict) else None
    if not isinstance(given, dict) or role not in ROLES:
        raise ApiError(400, f"{where} is not an object with a role of {', '.join(ROLES)}", param=where)
    content = given.get("content")
    if not isinstance(content, list):
        yield {"role": role, "content": content_of(role, content, f"{where}.content")}
        return
    blocks = [block for block in content if isinstance(block, dict) and block.get("type") not in THOUGHTS]
    results = [block for block in blocks if block.get("type") == "tool_result"]
    for block in results:
        text = content_of("tool", block.get("content"), f"{where}.content")
        yield {"role": "tool", "content": text, "tool_call_id": block.get("tool_use_id")}
    used = [block for block in blocks if block.get("type") == "tool_use"]
    texts = [block for block in blocks if block.get("type") not in ("tool_result", "tool_use")]
    if texts or used or not results:
        calls = [ToolCall(str(each.get("name")), _arguments(each.get("input")), each.get("id")) for each in used]
        called = {"tool_calls": [as_call(call) for call in calls]} if calls else {}
        yield {"role": role, "content": content_of(role, texts, f"{where}.content"), **called}


class Messages:
    path = "/v1/messages"

    def read(self, body: Fields) -> Asked:
        body.refuse(INSTEAD)
        if body.take("thread", dict, None):
            # In a thread, a client sends only the new messages, without the system prompt and the tools.
            message = "thread is not supported: send the whole conversation"
            raise ApiError(400, message, param="thread", unsupported="thread_unsupported_request")
        given: Sequence[object] = body.take("messages", list)
        messages = [each for i, one in enumerate(given) for each in read_message(one, f"messages[{i}]")]
        if messages and messages[-1]["role"] == "assistant":
            where = f"messages[{len(given) - 1}] begins the reply (prefill)"
            raise ApiError(400, f"{where}: say in the prompt how the reply begins instead", param="messages")
        form = Fields(body.take("output_config", dict, {})).take("format", dict | None, None)
        form = form or body.take("output_format", dict, {})
        system = content_of("system", body.take("system", str | list, ""), "system")
        system_prompt = [{"role": "system", "content": system}] if system else []
        tools = [_tool(each, f"tools[{i}]") for i, each in enumerate(body.take("tools", list[JsonObject], []))]
        return Asked(
            model=body.take("model", str),
            messages=with_schema([*system_prompt, *messages], form.get("schema")),
            tools=() if body.take("tool_choice", dict, {}).get("type") == "none" else tools,
            max_tokens=body.take_limit("max_tokens"),
            stop=body.take("stop_sequences", list[str], []),
            stream=body.take("stream", bool, False),
            schema=form.get("schema"),
            unused=body.left,
        )

    def whole(self, asked: Asked, served: Served) -> JsonObject:
        return {**_head(asked, served), "content": list(_blocks(served)), **_end(served), "usage": _usage(served)}

    def events(self, asked: Asked, served: Served) -> Iterator[str]:
        def sent(kind: str, **fields: object) -> str:
            return event({"type": kind, **fields}, kind)

        opened = {**_head(asked, served), "content": [], "stop_reason": None, "stop_sequence": None}
        yield sent("message_start", message={**opened, "usage": {**_usage(served), "output_tokens": 0}})
        for place, block in enumerate(_blocks(served)):
            if block["type"] == "text":
                empty, delta = {**block, "text": ""}, {"type": "text_delta", "text": block["text"]}
            else:
                empty, delta = {**block, "input": {}}, {"type": "input_json_delta"}
                delta["partial_json"] = json.dumps(block["input"])
            yield sent("content_block_start", index=place, content_block=empty)
            yield sent("content_block_delta", index=place, delta=delta)
            yield sent("content_block_stop", index=place)
        yield sent("message_delta", delta=_end(served), usage=_usage(served))
        yield sent("message_stop")


def _tool(given: JsonObject, where: str) -> JsonObject:
    if "input_schema" not in given:
        kind = given.get("type")
        raise ApiError(400, f"{where} is of type {kind} without an input_schema; a program brings tools", param=where)
    return tool(given.get("name"), given.get("description"), given["input_schema"])


def _arguments(given: object) -> str:
    """Return the arguments of a call as a JSON string, or as the sampled text if that was not a JSON object."""
    invalid = given.get(INVALID) if isinstance(given, dict) and len(given) == 1 else None
    return invalid if isinstance(invalid, str) else json.dumps(given or {})


def _head(asked: Asked, served: Served) -> JsonObject:
    return {"id": served.id, "type": "message", "role": "assistant", "model": asked.model}


def _blocks(served: Served) -> Iterator[JsonObject]:
    if served.text or not served.calls:
        yield {"type": "text", "text": served.text}
    for call in served.calls:
        given = {INVALID: call.arguments} if call.parameters is None else call.parameters
        yield {"type": "tool_use", "id": call.id, "name": call.name, "input": given}


def _end(served: Served) -> JsonObject:
    reason = "stop_sequence" if served.stopped_by is not None else "end_turn"
    reason = "max_tokens" if served.reply.truncated else "tool_use" if served.calls else reason
    return {"stop_reason": reason, "stop_sequence": served.stopped_by}


def _usage(served: Served) -> JsonObject:
    return {"input_tokens": served.usage.prompt, "output_tokens": served.usage.completion}


DIALECTS.register("messages")(Messages())
