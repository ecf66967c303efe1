"""Messages as OpenAI's protocol has them: calls of tools, their results, and images."""

from __future__ import annotations

import base64
import io
import json
from collections.abc import Mapping, Sequence
from typing import Protocol, cast

from verl_mas.workflow.client import Message, ToolCall
from verl_mas.workflow.codecs.json_block import JsonObject


class Image(Protocol):
    """An image of PIL."""

    def save(self, file: io.BytesIO, format: str) -> None: ...


def text_of(message: Mapping[str, object]) -> str:
    """The text of a message of an endpoint, perhaps in parts. Raises TypeError or AttributeError for what is none."""
    content = message.get("content") or ""
    if isinstance(content, list):
        content = "".join(part.get("text", "") for part in content)
    if not isinstance(content, str):
        raise TypeError(f"content is a {type(content).__name__}")
    return content


def calls_of(message: Mapping[str, object]) -> list[ToolCall]:
    """The calls in a message of an endpoint. Raises LookupError, TypeError or AttributeError if they are not calls."""
    calls = cast(Sequence[JsonObject], message.get("tool_calls") or ())
    return [ToolCall(str(call["function"]["name"]), _text(call["function"]), call.get("id") or None) for call in calls]


def _text(function: JsonObject) -> str:
    """The arguments as the model wrote them; some endpoints send an object, and none for a call without arguments."""
    arguments = function.get("arguments")
    return arguments if isinstance(arguments, str) and arguments else json.dumps(arguments or {})


def as_openai(messages: Sequence[Message]) -> list[Message]:
    """Messages for an endpoint. Calls of tools get what it needs and a chat template does not: an id, which their
    results repeat, and arguments as JSON text."""
    found: list[Message] = []
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
        found.append(message)
    return found


def _call(call: JsonObject, name: str) -> JsonObject:
    function = call["function"]
    return {
        "type": "function",
        **call,
        "id": call.get("id") or name,
        "function": {**function, "arguments": _json(function.get("arguments"))},
    }


def _json(arguments: object) -> str:
    """An endpoint refuses a conversation with arguments that are not JSON, also if its model wrote them."""
    if not isinstance(arguments, str):
        return json.dumps(arguments or {})
    try:
        return arguments if isinstance(json.loads(arguments), dict) else json.dumps({"invalid": arguments})
    except (ValueError, RecursionError):
        return json.dumps({"invalid": arguments})


def _content(content: object) -> object:
    if not isinstance(content, list):
        return content
    return [_image(part["image"]) if part.get("type") == "image" else part for part in content]


def _image(image: object) -> JsonObject:
    """An image of PIL, or its address, as a part of a message."""
    url = image
    if not isinstance(image, str):
        file = io.BytesIO()
        cast(Image, image).save(file, "PNG")
        url = "data:image/png;base64," + base64.b64encode(file.getvalue()).decode()
    return {"type": "image_url", "image_url": {"url": url}}
