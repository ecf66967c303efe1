"""A conversation with a tool, with the `anthropic` package only."""

import anthropic

ADD = {
    "name": "add",
    "description": "Add two numbers.",
    "input_schema": {"type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}}},
}


def team(task, gateway):
    # Its base URL is without /v1.
    client = anthropic.Anthropic(base_url=gateway.base_url.removesuffix("/v1"), api_key=gateway.api_key)
    messages = [{"role": "user", "content": task.question}]
    for _ in range(6):
        reply = client.messages.create(
            model="solver", max_tokens=256, system="You compute.", messages=messages, tools=[ADD]
        )
        messages.append({"role": "assistant", "content": reply.content})
        results = [
            {"type": "tool_result", "tool_use_id": block.id, "content": str(sum(block.input.values()))}
            for block in reply.content
            if block.type == "tool_use"
        ]
        if not results:
            break
        messages.append({"role": "user", "content": results})
    return "".join(block.text for block in reply.content if block.type == "text")


def streamed(task, gateway):
    client = anthropic.Anthropic(base_url=gateway.base_url.removesuffix("/v1"), api_key=gateway.api_key)
    messages = [{"role": "user", "content": task.question}]
    with client.messages.stream(
        model="solver", max_tokens=256, system="You compute.", messages=messages, tools=[ADD]
    ) as stream:
        reply = stream.get_final_message()
    return "".join(block.text for block in reply.content if block.type == "text")
