"""Write a history, which is independent of protocols, as clients of each protocol do, in varying spellings."""

import json
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from verl_mas.gateway.dialect import Dialect

Json = dict[str, Any]
STOP = "</code>"


@dataclass(frozen=True)
class Turn:
    """A message, independent of protocols."""

    role: str
    text: str
    calls: tuple[tuple[str, str], ...] = ()


@dataclass
class Protocol:
    """Writes a history as different clients do, and reads the reply."""

    rng: random.Random
    dialect: Dialect

    @property
    def path(self) -> str:
        return self.dialect.path

    def odds(self, share: float) -> bool:
        return self.rng.random() < share

    def body(self, system: str, turns: Sequence[Turn], tools: Sequence[str], stop: bool) -> Json:
        write = {"/v1/chat/completions": self._chat, "/v1/responses": self._items, "/v1/messages": self._blocks}
        body = write[self.path](system, turns)
        schemas = [{"type": "object", "properties": {"a": {"type": "integer"}}} for _ in tools]
        functions = [{"name": name, "parameters": each} for name, each in zip(tools, schemas, strict=True)]
        if self.path == "/v1/chat/completions":
            body |= {"stop": STOP} if stop else {}
            functions = [{"type": "function", "function": each} for each in functions]
        elif self.path == "/v1/responses":
            functions = [{"type": "function", **each} for each in functions]
        else:
            body |= {"stop_sequences": [STOP]} if stop else {}
            functions = [{"name": each["name"], "input_schema": each["parameters"]} for each in functions]
        return body | ({"tools": functions} if tools else {})

    def _id(self, place: int) -> str:
        return f"call_{place}_{self.rng.randrange(3)}"

    def _content(self, text: str, kind: str) -> object:
        return [{"type": kind, "text": text}] if self.odds(0.3) else text

    def _chat(self, system: str, turns: Sequence[Turn]) -> Json:
        first = [{"role": self.rng.choice(["system", "developer"]), "content": system}] if system else []
        return {"messages": first + [self._message(turn) for turn in turns]}

    def _message(self, turn: Turn) -> Json:
        message = {"role": turn.role, "content": self._content(turn.text, "text")}
        if turn.role == "tool":
            message["tool_call_id"] = self._id(0)
        if turn.role == "assistant" and self.odds(0.3):
            message |= {"refusal": None, "annotations": [], "audio": None, "reasoning_content": "thought"}
        if turn.calls:
            message |= {} if turn.text or self.odds(0.5) else {"content": None}
            message["tool_calls"] = [
                {"id": self._id(place), "type": "function", "function": {"name": name, "arguments": self._again(given)}}
                for place, (name, given) in enumerate(turn.calls)
            ]
        return message

    def _again(self, arguments: str) -> str:
        return spelled(arguments, indent=self.rng.choice([None, 1]), sort_keys=self.odds(0.5))

    def _items(self, system: str, turns: Sequence[Turn]) -> Json:
        items = [item for turn in turns for item in self._items_of(turn)]
        return {"input": items, **({"instructions": system} if system else {})}

    def _items_of(self, turn: Turn) -> Iterator[Json]:
        if turn.role == "tool":
            yield {"type": "function_call_output", "call_id": self._id(0), "output": turn.text}
            return
        if turn.role == "assistant" and self.odds(0.2):
            yield {"type": "reasoning", "summary": []}
        if turn.text or not turn.calls:
            kind = "output_text" if turn.role == "assistant" else "input_text"
            yield {"type": "message", "role": turn.role, "content": self._content(turn.text, kind)}
        for place, (name, given) in enumerate(turn.calls):
            yield {"type": "function_call", "call_id": self._id(place), "name": name, "arguments": self._again(given)}

    def _blocks(self, system: str, turns: Sequence[Turn]) -> Json:
        messages: list[Json] = []
        for turn in turns:
            if turn.role == "tool":
                result = {
                    "type": "tool_result",
                    "tool_use_id": self._id(0),
                    "content": self._content(turn.text, "text"),
                }
                if messages and messages[-1]["content"][-1]["type"] == "tool_result":
                    messages[-1]["content"].append(result)
                else:
                    messages.append({"role": "user", "content": [result]})
                continue
            texts = [{"type": "text", "text": turn.text}] if turn.text or not turn.calls else []
            used = [{"type": "tool_use", "id": self._id(0), "name": n, "input": _object(g)} for n, g in turn.calls]
            messages.append({"role": turn.role, "content": [*texts, *used]})
        return {"messages": messages, "max_tokens": 100, **({"system": system} if system else {})}

    def reply(self, whole: Any) -> Turn:
        """Read a reply as a client of the protocol does."""
        if self.path == "/v1/chat/completions":
            [choice] = whole["choices"]
            text = choice["message"]["content"] or ""
            functions = [call["function"] for call in choice["message"].get("tool_calls", ())]
            calls = [(each["name"], each["arguments"]) for each in functions]
        elif self.path == "/v1/responses":
            items = whole["output"]
            text = "".join(item["content"][0]["text"] for item in items if item["type"] == "message")
            calls = [(item["name"], item["arguments"]) for item in items if item["type"] == "function_call"]
        else:
            blocks = whole["content"]
            text = "".join(block["text"] for block in blocks if block["type"] == "text")
            calls = [(each["name"], json.dumps(each["input"])) for each in blocks if each["type"] == "tool_use"]
        return Turn("assistant", text, tuple(calls))


def spelled(arguments: str, **how: Any) -> str:
    """Write the same arguments in another spelling. Text that is not JSON is returned unchanged."""
    try:
        return json.dumps(json.loads(arguments), **how)
    except ValueError:
        return arguments


def _object(arguments: str) -> Any:
    """Parse arguments. If they are not JSON, wrap them in an object: Anthropic's protocol requires one."""
    try:
        return json.loads(arguments)
    except ValueError:
        return {"not_a_json_object": arguments}
