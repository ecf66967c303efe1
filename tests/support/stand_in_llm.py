"""An endpoint that sends scripted replies in three dialects, and records the requests.

With it the programs of other frameworks run without a model, and without the gateway.
"""

from __future__ import annotations

import json
import threading
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

Json = dict[str, Any]
USAGE = 7  # tokens, of every prompt and of every reply


class StandIn(ThreadingHTTPServer):
    """`replies`: by the model's name, in order, as in `replies.yaml`; the last one repeats."""

    daemon_threads = True

    def __init__(self, replies: Mapping[str, Sequence[str | Json]]):
        super().__init__(("127.0.0.1", 0), Handler)
        self.replies = replies
        self.requests: list[Json] = []
        self._asked: Counter[str] = Counter()
        self._lock = threading.Lock()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}/v1"

    def asked(self, path: str, body: Json) -> tuple[int, Json]:
        """The number of the request and its reply: `text`, `calls`, and the `stop` string that ended it."""
        with self._lock:
            script = self.replies[body["model"]]
            given = script[min(self._asked[body["model"]], len(script) - 1)]
            self._asked[body["model"]] += 1
            reply = {"text": "", "calls": [], "stop": None, **(given if isinstance(given, dict) else {"text": given})}
            found = [stop for stop in body.get("stop") or body.get("stop_sequences") or () if stop in reply["text"]]
            if found:
                reply["stop"] = min(found, key=reply["text"].index)
                reply["text"] = reply["text"].partition(reply["stop"])[0]
            self.requests.append({"path": path, "body": body, "reply": reply})
            return len(self.requests), reply


class Handler(BaseHTTPRequestHandler):
    server: StandIn
    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        path = self.path.partition("?")[0]
        if path not in DIALECTS or body.get("model") not in self.server.replies:
            message = f"{path}, model {body.get('model')}: not in the script"
            return self._send(404, "application/json", json.dumps({"error": {"message": message}}))
        write, events = DIALECTS[path]
        number, reply = self.server.asked(path, body)
        calls = [(f"call_{number}_{i}", *next(iter(call.items()))) for i, call in enumerate(reply["calls"])]
        answer = write(number, reply, calls) | {"model": body["model"]}
        if not body.get("stream"):
            return self._send(200, "application/json", json.dumps(answer))
        self._send(200, "text/event-stream", "".join(map(_event, events(answer))))

    def _send(self, status: int, kind: str, text: str) -> None:
        data = text.encode()
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *args: object) -> None:
        pass


def _event(data: Json | None) -> str:
    """Write an event of a stream. `None` ends a stream of chat completions, whose events have no name."""
    name = f"event: {data['type']}\n" if data and "type" in data else ""
    return f"{name}data: {json.dumps(data) if data else '[DONE]'}\n\n"


Calls = Sequence[tuple[str, str, Json]]


def chat(number: int, reply: Json, calls: Calls) -> Json:
    message: Json = {"role": "assistant", "content": reply["text"] or None, "refusal": None}
    if calls:
        message["tool_calls"] = [
            {"id": id_, "type": "function", "function": {"name": name, "arguments": json.dumps(given)}}
            for id_, name, given in calls
        ]
    choice = {"index": 0, "message": message, "finish_reason": "tool_calls" if calls else "stop"}
    usage = {"prompt_tokens": USAGE, "completion_tokens": USAGE, "total_tokens": 2 * USAGE}
    return {"id": f"chatcmpl-{number}", "object": "chat.completion", "created": 0, "choices": [choice], "usage": usage}


def chat_events(answer: Json) -> Iterator[Json | None]:
    head = answer | {"object": "chat.completion.chunk", "usage": None}
    [choice] = answer["choices"]
    delta = dict(choice["message"])
    if "tool_calls" in delta:
        delta["tool_calls"] = [{"index": i} | call for i, call in enumerate(delta["tool_calls"])]
    yield head | {"choices": [{"index": 0, "delta": delta, "finish_reason": None}]}
    yield head | {"choices": [{"index": 0, "delta": {}, "finish_reason": choice["finish_reason"]}]}
    yield head | {"choices": [], "usage": answer["usage"]}
    yield None


def response(number: int, reply: Json, calls: Calls) -> Json:
    output: list[Json] = []
    if reply["text"]:
        text = {"type": "output_text", "text": reply["text"], "annotations": []}
        head = {"type": "message", "id": f"msg_{number}", "role": "assistant"}
        output.append(head | {"status": "completed", "content": [text]})
    for id_, name, given in calls:
        call: Json = {"type": "function_call", "id": f"fc_{id_}", "call_id": id_, "status": "completed"}
        output.append(call | {"name": name, "arguments": json.dumps(given)})
    usage: Json = {"input_tokens": USAGE, "output_tokens": USAGE, "total_tokens": 2 * USAGE}
    usage |= {"input_tokens_details": {"cached_tokens": 0}, "output_tokens_details": {"reasoning_tokens": 0}}
    about: Json = {"id": f"resp_{number}", "object": "response", "created_at": 0, "status": "completed", "error": None}
    return about | {"output": output, "parallel_tool_calls": True, "tool_choice": "auto", "tools": [], "usage": usage}


def response_events(answer: Json) -> Iterator[Json]:
    events: list[Json] = [{"type": "response.created", "response": answer | {"output": [], "status": "in_progress"}}]
    for index, item in enumerate(answer["output"]):
        at = {"output_index": index, "item_id": item["id"]}
        events.append({"type": "response.output_item.added", "output_index": index, "item": item})
        if item["type"] == "message":
            delta = {"delta": item["content"][0]["text"], "content_index": 0, "logprobs": []}
            events.append({"type": "response.output_text.delta"} | at | delta)
        events.append({"type": "response.output_item.done", "output_index": index, "item": item})
    events.append({"type": "response.completed", "response": answer})
    yield from ({**event, "sequence_number": number} for number, event in enumerate(events))


def message(number: int, reply: Json, calls: Calls) -> Json:
    content: list[Json] = [{"type": "text", "text": reply["text"]}] if reply["text"] else []
    content += [{"type": "tool_use", "id": id_, "name": name, "input": given} for id_, name, given in calls]
    why = {"stop_reason": "tool_use" if calls else "stop_sequence" if reply["stop"] else "end_turn"}
    why["stop_sequence"] = reply["stop"]
    usage = {"input_tokens": USAGE, "output_tokens": USAGE}
    return {"id": f"msg_{number}", "type": "message", "role": "assistant", "content": content, "usage": usage} | why


def message_events(answer: Json) -> Iterator[Json]:
    yield {"type": "message_start", "message": answer | {"content": []}}
    for index, block in enumerate(answer["content"]):
        empty, delta = {"type": "text", "text": ""}, {"type": "text_delta", "text": block.get("text")}
        if block["type"] == "tool_use":
            empty = block | {"input": {}}
            delta = {"type": "input_json_delta", "partial_json": json.dumps(block["input"])}
        yield {"type": "content_block_start", "index": index, "content_block": empty}
        yield {"type": "content_block_delta", "index": index, "delta": delta}
        yield {"type": "content_block_stop", "index": index}
    ends = {name: answer[name] for name in ("stop_reason", "stop_sequence")}
    yield {"type": "message_delta", "delta": ends, "usage": answer["usage"]}
    yield {"type": "message_stop"}


DIALECTS = {
    "/v1/chat/completions": (chat, chat_events),
    "/v1/responses": (response, response_events),
    "/v1/messages": (message, message_events),
}


@contextmanager
def stand_in(replies: Mapping[str, Sequence[str | Json]]) -> Iterator[StandIn]:
    server = StandIn(replies)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield server
    finally:
        server.shutdown()
        server.server_close()
