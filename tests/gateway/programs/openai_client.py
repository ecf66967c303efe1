"""Programs that use only the `openai` package. In `team` and `responses`, the agent can call a tool."""

import json

import openai
from pydantic import BaseModel

ADD = {
    "name": "add",
    "description": "Add two numbers.",
    "parameters": {"type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}}},
}


class Answer(BaseModel):
    number: int


def team(task, gateway):
    client = openai.OpenAI(base_url=gateway.base_url, api_key=gateway.api_key)
    messages = [{"role": "system", "content": "You compute."}, {"role": "user", "content": task.question}]
    for _ in range(6):
        completion = client.chat.completions.create(
            model="solver", messages=messages, tools=[{"type": "function", "function": ADD}], temperature=0
        )
        message = completion.choices[0].message
        messages.append(message)
        for call in message.tool_calls or ():
            given = json.loads(call.function.arguments)
            messages.append({"role": "tool", "tool_call_id": call.id, "content": str(sum(given.values()))})
        if not message.tool_calls:
            break
    messages.append({"role": "user", "content": "The number alone, as JSON."})
    parsed = client.chat.completions.parse(model="solver", messages=messages, response_format=Answer)
    answer = parsed.choices[0].message.parsed
    return float(answer is not None and answer.number == int(task.ground_truth))


async def responses(task, gateway):
    """Send only the new items in each request."""
    client = openai.AsyncOpenAI(base_url=gateway.base_url, api_key=gateway.api_key)
    tools = [{"type": "function", **ADD}]
    response = await client.responses.create(
        model="solver", instructions="You compute.", input=task.question, tools=tools
    )
    for _ in range(6):
        calls = [item for item in response.output if item.type == "function_call"]
        if not calls:
            break
        results = [
            {
                "type": "function_call_output",
                "call_id": call.call_id,
                "output": str(sum(json.loads(call.arguments).values())),
            }
            for call in calls
        ]
        response = await client.responses.create(
            model="solver",
            instructions="You compute.",
            previous_response_id=response.id,
            input=results,
            tools=tools,
        )
    return response.output_text


async def streamed(task, gateway):
    client = openai.AsyncOpenAI(base_url=gateway.base_url, api_key=gateway.api_key)
    stream = await client.chat.completions.create(
        model="solver",
        messages=[{"role": "user", "content": task.question}],
        stream=True,
        stream_options={"include_usage": True},
    )
    return "".join([chunk.choices[0].delta.content or "" async for chunk in stream if chunk.choices])
