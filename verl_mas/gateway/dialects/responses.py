"""The protocol of OpenAI's Responses API."""

import time
from collections.abc import Iterator, Mapping, Sequence
from itertools import count

from verl_mas.gateway.dialect import DIALECTS, ApiError, Asked, Fields, Served, content_of, event, tool, with_schema
from verl_mas.gateway.dialects.chat import ROLES
from verl_mas.gateway.streaming import Usage
from verl_mas.workflow.client import Message, ToolCall, as_call
from verl_mas.workflow.codecs import JsonObject

TEXTS = ("input_text", "output_text", "text", "refusal")
SEPARATOR = "__"  # separates a namespace from a function in the full name
INSTEAD = {
    "conversation": "use previous_response_id, or send the whole transcript",
    "background": "wait for the reply",
    "prompt": "send the messages",
    "top_logprobs": "a row has the log-probs of the sampled tokens alone",
}


def read_items(given: str | Sequence[object], served: Mapping[str, JsonObject]) -> list[Message]:
    """Convert the items of a transcript to messages. A call becomes part of the assistant message before it. `served`
    maps ids to items, because a request may send the id of an item in place of the item."""
    if isinstance(given, str):
        return [{"role": "user", "content": given}]
    messages: list[Message] = []
    for number, item in enumerate(given):
        where = f"input[{number}]"
        if not isinstance(item, dict):
            raise ApiError(400, f"{where} is not an object", param=where)
        if item.get("type") == "item_reference":
            item = served.get(str(item.get("id"))) or item
        kind = item.get("type") or "message"
        if kind == "message" and str(item.get("role")) in ROLES:
            content = content_of(item["role"], item.get("content"), f"{where}.content", TEXTS)
            messages.append({"role": ROLES[item["role"]], "content": content})
        elif kind == "function_call" and isinstance(item.get("name"), str):
            if not messages or messages[-1]["role"] != "assistant":
                messages.append({"role": "assistant", "content": ""})
            name = SEPARATOR.join(filter(None, (str(item.get("namespace") or ""), item["name"])))
            call = ToolCall(name, str(item.get("arguments") or "{}"), item.get("call_id"))
            messages[-1] = {**messages[-1], "tool_calls": [*messages[-1].get("tool_calls", ()), as_call(call)]}
        elif kind == "function_call_output":
            content = content_of("tool", item.get("output"), f"{where}.output", TEXTS)
            messages.append({"role": "tool", "content": content, "tool_call_id": item.get("call_id")})
        elif kind == "item_reference":
            raise ApiError(400, f"{where} names {item.get('id')!r:.80}, and no reply here has that id", param=where)
        elif kind != "reasoning":  # skip reasoning, which the text of the reply contains
            raise ApiError(400, f"{where} is {kind!r:.40}, which agents are not asked in", param=where)
    return messages


class Responses:
    path = "/v1/responses"

    def read(self, body: Fields) -> Asked:
        body.refuse(INSTEAD)
        form = Fields(body.take("text", dict, {})).take("format", dict | None, None) or {}
        given = enumerate(body.take("tools", list[JsonObject], []))
        functions = [function for i, one in given for function in _functions(one, f"tools[{i}]")]
        messages = read_items(body.take("input", str | list), body.items)
        instructions: str = body.take("instructions", str, "")
        # Add the schema to the instructions. They are not part of the transcript, so the schema does not apply to later
        # requests.
        if schema := form.get("schema"):
            system = [{"role": "system", "content": instructions}] if instructions else []
            instructions = str(with_schema(system, schema)[0]["content"])
        return Asked(
            model=body.take("model", str),
            messages=messages,
            instructions=instructions,
            after=body.take("previous_response_id", str, None),
            tools=() if body.take("tool_choice", str | dict, "auto") == "none" else [schema for _, schema in functions],
            namespaces={schema["function"]["name"]: name for name, schema in functions if name},
            max_tokens=body.take_limit("max_output_tokens"),
            stream=body.take("stream", bool, False),
            schema=schema,
            unused=body.left,
        )

    def whole(self, asked: Asked, served: Served) -> JsonObject:
        head = _head(asked, served, "incomplete" if served.reply.truncated else "completed")
        cut = {"reason": "max_output_tokens"} if served.reply.truncated else None
        return {**head, "incomplete_details": cut, "output": list(_items(asked, served)), "usage": _usage(served.usage)}

    def events(self, asked: Asked, served: Served) -> Iterator[str]:
        numbers = count()

        def sent(kind: str, **fields: object) -> str:
            return event({"type": kind, "sequence_number": next(numbers), **fields}, kind)

        opened = _head(asked, served, "in_progress")
        yield sent("response.created", response=opened)
        yield sent("response.in_progress", response=opened)
        for place, item in enumerate(_items(asked, served)):
            at = {"item_id": item["id"], "output_index": place}
            if item["type"] == "message":
                [part] = item["content"]
                empty, inner = {**item, "status": "in_progress", "content": []}, {**at, "content_index": 0}
                yield sent("response.output_item.added", output_index=place, item=empty)
                yield sent("response.content_part.added", **inner, part={**part, "text": ""})
                yield sent("response.output_text.delta", **inner, delta=part["text"], logprobs=[])
                yield sent("response.output_text.done", **inner, text=part["text"], logprobs=[])
                yield sent("response.content_part.done", **inner, part=part)
            else:
                empty, arguments = {**item, "status": "in_progress", "arguments": ""}, item["arguments"]
                yield sent("response.output_item.added", output_index=place, item=empty)
                yield sent("response.function_call_arguments.delta", **at, delta=arguments)
                yield sent("response.function_call_arguments.done", **at, arguments=arguments, name=item["name"])
            yield sent("response.output_item.done", output_index=place, item=item)
        end = "response.incomplete" if served.reply.truncated else "response.completed"
        yield sent(end, response=self.whole(asked, served))


def _functions(given: JsonObject, where: str) -> Iterator[tuple[str, JsonObject]]:
    """Yield the namespace and the schema of a function, or of each function of a namespace. The schema has the full
    name of the function."""
    namespace = str(given.get("name")) if given.get("type") == "namespace" else ""
    for each in Fields(given).take("tools", list[JsonObject]) if namespace else [given]:
        if each.get("type") != "function":
            raise ApiError(400, f"{where} is of type {each.get('type')}; a program brings functions", param=where)
        name = SEPARATOR.join(filter(None, (namespace, str(each.get("name")))))
        yield namespace, tool(name, each.get("description"), each.get("parameters"))


def _usage(usage: Usage) -> JsonObject:
    details = {"input_tokens_details": {"cached_tokens": 0}, "output_tokens_details": {"reasoning_tokens": 0}}
    total = usage.prompt + usage.completion
    return {"input_tokens": usage.prompt, "output_tokens": usage.completion, "total_tokens": total, **details}


def _head(asked: Asked, served: Served, status: str) -> JsonObject:
    empty = dict.fromkeys(("error", "incomplete_details", "temperature", "top_p", "usage"))
    about = {"id": served.id, "object": "response", "created_at": int(time.time()), "status": status, "output": []}
    request = {"model": asked.model, "instructions": asked.instructions or None, "previous_response_id": asked.after}
    tools = [{"type": "function", "strict": False, **each["function"]} for each in asked.tools]
    choice = {"tools": tools, "tool_choice": "auto", "parallel_tool_calls": True, "metadata": {}}
    return {**empty, **about, **request, **choice}


def _items(asked: Asked, served: Served) -> Iterator[JsonObject]:
    status = "incomplete" if served.reply.truncated else "completed"
    if served.text or not served.calls:
        part = {"type": "output_text", "text": served.text, "annotations": [], "logprobs": []}
        message = {"type": "message", "role": "assistant", "content": [part]}
        yield {"id": f"msg_{served.id}", "status": status, **message}
    for call in served.calls:
        namespace = asked.namespaces.get(call.name)
        own = {} if namespace is None else {"namespace": namespace}
        name = call.name.removeprefix(f"{namespace}{SEPARATOR}") if own else call.name
        named = {"call_id": call.id, "name": name, "arguments": call.arguments, **own}
        yield {"id": f"fc_{served.id}_{call.id}", "status": status, "type": "function_call", **named}


DIALECTS.register("responses")(Responses())
