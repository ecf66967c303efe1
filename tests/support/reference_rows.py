"""Find the row that each request of a session continues: a second, slow and simple implementation of the page's rules.

The gateway's own matching is compared with it.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

Json = Mapping[str, Any]
INVALID = "not_a_json_object"  # the only argument of a call whose arguments are not an object


class Message(NamedTuple):
    """The compared parts of a message, without ids of calls and without fields that a client adds."""

    role: str
    content: str = ""
    calls: tuple[tuple[str, str], ...] = ()
    name: str = ""


class Placed(NamedTuple):
    """The row of an act; `why` is continued, branched or new."""

    agent: str
    row: int
    why: str


@dataclass
class Session:
    """The acts of a session so far."""

    transcripts: dict[tuple[str, str, tuple[Message, ...]], int] = field(default_factory=dict)  # -> the act
    rows: list[int] = field(default_factory=list)  # of each act
    by_response: dict[str, tuple[Message, ...]] = field(default_factory=dict)

    def place(self, request: Json) -> Placed:
        """Place the next act. `request` has `path`, `body` and the `reply` that was served."""
        body, agent = request["body"], request["body"]["model"]
        before = self.by_response.get(body.get("previous_response_id"), ())
        given = (*before, *transcript(request["path"], body))
        messages = tuple(with_instructions(given, body))
        tools = json.dumps(shown(body), sort_keys=True)
        act = next((self.transcripts[k] for k in _prefixes(agent, tools, messages) if k in self.transcripts), None)
        row = max(self.rows, default=-1) + 1
        why = "new"
        if act is not None:
            last = max(i for i, other in enumerate(self.rows) if other == self.rows[act]) == act
            row, why = (self.rows[act], "continued") if last else (row, "branched")
        for spelling in spellings(request["reply"]):
            self.transcripts[agent, tools, (*messages, spelling)] = len(self.rows)
        self.rows.append(row)
        # Clients send the instructions with each request.
        self.by_response[f"resp_{len(self.rows)}"] = (*given, next(spellings(request["reply"])))
        return Placed(agent, row, why)


def _prefixes(agent: str, tools: str, messages: tuple[Message, ...]) -> Iterator[tuple[str, str, tuple[Message, ...]]]:
    return ((agent, tools, messages[:end]) for end in range(len(messages), 0, -1))


def placed(requests: Sequence[Json]) -> list[Placed]:
    session = Session()
    return [session.place(request) for request in requests]


def spellings(reply: Json) -> Iterator[Message]:
    """Yield a reply as it was served, and once more with the stop string that ended it."""
    calls = tuple((name, _arguments(given)) for call in reply["calls"] for name, given in call.items())
    yield Message("assistant", reply["text"], calls)
    if reply["stop"]:
        yield Message("assistant", reply["text"] + reply["stop"], calls)


def transcript(path: str, body: Json) -> Iterator[Message]:
    """Yield the messages of a request in any dialect."""
    if path.endswith("/chat/completions"):
        yield from map(_of_chat, body["messages"])
    elif path.endswith("/responses"):
        items = body["input"]
        yield from _of_items([{"role": "user", "content": items}] if isinstance(items, str) else items)
    else:
        for message in body["messages"]:
            yield from _of_blocks(message)


def shown(body: Json) -> Sequence[Json]:
    """The tools that the agent sees."""
    return [] if body.get("tool_choice") in ("none", {"type": "none"}) else body.get("tools") or []


def with_instructions(given: Sequence[Message], body: Json) -> list[Message]:
    """Add the system prompt of Responses and of Anthropic's protocol, and the schema of the reply, to a transcript."""
    text = body.get("instructions") or _text(body.get("system"))
    return _with_schema([*([Message("system", text)] if text else []), *given], body)


def _with_schema(messages: list[Message], body: Json) -> list[Message]:
    """Add the schema of a typed reply to the system prompt."""
    form = body.get("response_format") or (body.get("text") or {}).get("format") or {}
    schema = form.get("schema") or form.get("json_schema", {}).get("schema")
    if not schema:
        return messages
    first = [*messages[:1]] if messages[0].role == "system" else []
    text = "".join(each.content for each in first) + json.dumps(schema)
    return [Message("system", text), *messages[len(first) :]]


def _of_chat(message: Json) -> Message:
    calls = tuple(
        (call["function"]["name"], _arguments(call["function"]["arguments"]))
        for call in message.get("tool_calls") or ()
    )
    role: str = "system" if message["role"] == "developer" else message["role"]
    return Message(role, _text(message.get("content")), calls, str(message.get("name") or "") if role == "user" else "")


def _of_items(items: Sequence[Json]) -> Iterator[Message]:
    """Join the text and the calls of a reply into one message."""
    reply = None
    for item in items:
        kind = item.get("type", "message")
        if kind == "function_call":
            reply = reply or Message("assistant")
            reply = reply._replace(calls=(*reply.calls, (item["name"], _arguments(item["arguments"]))))
            continue
        if kind not in ("message", "function_call_output"):
            continue
        if reply:
            yield reply
        message = Message("tool", _text(item["output"])) if kind != "message" else _of_chat(item)
        reply = message if message.role == "assistant" else None
        if reply is None:
            yield message
    if reply:
        yield reply


def _of_blocks(message: Json) -> Iterator[Message]:
    content = message["content"]
    blocks: Sequence[Json] = [{"type": "text", "text": content}] if isinstance(content, str) else content
    for block in blocks:
        if block["type"] == "tool_result":
            yield Message("tool", _text(block.get("content")))
    used = [block for block in blocks if block["type"] == "tool_use"]
    calls = tuple((block["name"], _arguments(block["input"].get(INVALID, block["input"]))) for block in used)
    text = _text([block for block in blocks if block["type"] == "text"])
    if text or calls or message["role"] == "assistant":
        yield Message(message["role"], text, calls)


def _text(content: str | Sequence[Json] | None) -> str:
    """Concatenate text parts without a separator, as chat templates do."""
    if content is None or isinstance(content, str):
        return content or ""
    return "".join(part.get("text", "") for part in content)


def _arguments(given: str | Json) -> str:
    """Write arguments in a canonical spelling. Text that is not JSON stays as it is."""
    try:
        return json.dumps(json.loads(given) if isinstance(given, str) else given, sort_keys=True)
    except ValueError:
        return str(given)
