"""A streamed chat completion of an endpoint, put together again."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field

from verl_mas.util.text import encodable
from verl_mas.workflow.codecs.json_block import JsonObject

DATA, DONE = "data:", "[DONE]"
# Asks for the numbers of tokens, which come with the last event.
OPTIONS = {"stream": True, "stream_options": {"include_usage": True}}


@dataclass
class Streamed:
    """Collects the events of one completion. Raises LookupError, TypeError, AttributeError or ValueError for an event
    that is not of a chat completion."""

    on_text: Callable[[str], None]
    message: JsonObject = field(default_factory=lambda: {"role": "assistant", "content": ""})
    finish_reason: str | None = None
    usage: JsonObject | None = None
    events: int = 0

    async def read(self, lines: AsyncIterator[str]) -> JsonObject:
        """The completion, as one that is not streamed."""
        async for line in lines:
            if not line.startswith(DATA) or (data := line.removeprefix(DATA).strip()) == DONE:
                continue
            self._add(json.loads(data))
        if not self.events:
            raise ValueError("no event of a chat completion")
        choice = {"index": 0, "message": self.message, "finish_reason": self.finish_reason}
        return {"choices": [choice], "usage": self.usage}

    def _add(self, event: JsonObject) -> None:
        self.usage = event.get("usage") or self.usage
        # The last one may have the usage alone.
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
        while len(calls) <= int(part["index"]):
            calls.append({"id": None, "type": "function", "function": {"name": "", "arguments": ""}})
        call, function = calls[part["index"]], part.get("function") or {}
        call["id"] = part.get("id") or call["id"]
        for name in ("name", "arguments"):
            call["function"][name] += function.get(name) or ""
