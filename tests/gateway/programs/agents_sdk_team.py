"""A triage agent hands off to an agent that computes."""

from agents import Agent, OpenAIChatCompletionsModel, OpenAIResponsesModel, Runner, function_tool, set_tracing_disabled
from openai import AsyncOpenAI

# The SDK would send traces to OpenAI.
set_tracing_disabled(True)


@function_tool
def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


def triage(gateway, kind=OpenAIResponsesModel):
    client = AsyncOpenAI(base_url=gateway.base_url, api_key=gateway.api_key)
    math = Agent(name="math", instructions="You compute.", model=kind("math", openai_client=client), tools=[add])
    model = kind("triage", openai_client=client)
    return Agent(name="triage", instructions="You hand off to the right agent.", model=model, handoffs=[math])


async def team(task, gateway):
    return (await Runner.run(triage(gateway), task.question)).final_output


async def streamed(task, gateway):
    result = Runner.run_streamed(triage(gateway), task.question)
    async for _ in result.stream_events():
        pass
    return result.final_output


async def chat_streamed(task, gateway):
    result = Runner.run_streamed(triage(gateway, OpenAIChatCompletionsModel), task.question)
    async for _ in result.stream_events():
        pass
    return result.final_output
