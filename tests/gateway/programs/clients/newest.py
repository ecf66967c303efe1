"""Current clients. Each function does one thing that once failed. The agent is always `solver`."""

import anthropic
import openai
from agents import Agent, OpenAIChatCompletionsModel, Runner, set_tracing_disabled
from autogen_ext.models.openai import OpenAIChatCompletionClient
from pydantic import BaseModel
from pydantic_ai import Agent as TypedAgent
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.providers.openai import OpenAIProvider
from smolagents import OpenAIModel, ToolCallingAgent

set_tracing_disabled(True)
ADD = {"name": "add", "parameters": {"type": "object", "properties": {"a": {"type": "integer"}}}}


class Answer(BaseModel):
    number: int


def streamed_calls(task, gateway):
    """Reads the first call of each chunk, as openai/swarm does."""
    client = openai.OpenAI(base_url=gateway.base_url, api_key=gateway.api_key)
    stream = client.chat.completions.create(
        model="solver", messages=task.messages, tools=[{"type": "function", "function": ADD}], stream=True
    )
    deltas = [chunk.choices[0].delta for chunk in stream]
    calls = [delta.tool_calls[0] for delta in deltas if delta.tool_calls]
    return " ".join(f"{call.index} {call.function.arguments}" for call in calls)


def called_and_returned_nothing(task, gateway):
    """The final answer of smolagents is a call."""
    model = OpenAIModel(model_id="solver", api_base=gateway.base_url, api_key=gateway.api_key)
    ToolCallingAgent(tools=[], model=model, max_steps=1, verbosity_level=0).run(task.question)


async def typed_and_returned_nothing(task, gateway):
    """Typed output of pydantic-ai is a call."""
    model = OpenAIChatModel("solver", provider=OpenAIProvider(base_url=gateway.base_url, api_key=gateway.api_key))
    await TypedAgent(model, output_type=Answer).run(task.question)


def claude(gateway):
    return anthropic.Anthropic(base_url=gateway.anthropic_url, api_key=gateway.api_key)


def tool_runner(task, gateway):
    @anthropic.beta_tool
    def add(a: int, b: int) -> str:
        """Add two numbers."""
        return str(a + b)

    asks = {"model": "solver", "max_tokens": 64, "system": "You compute.", "messages": task.messages}
    return claude(gateway).beta.messages.tool_runner(tools=[add], **asks).until_done().content[0].text


def typed_claude(task, gateway):
    reply = claude(gateway).messages.parse(model="solver", max_tokens=64, messages=task.messages, output_format=Answer)
    return str(reply.parsed_output.number)


async def other_names(task, gateway):
    """Use AutoGen and the Agents SDK with names of real models. The agent is in the address."""
    at = gateway.agent("solver")
    llm = OpenAIChatCompletionClient(model="gpt-4o", base_url=at.base_url, api_key=at.api_key)
    client = openai.AsyncOpenAI(base_url=at.base_url, api_key=at.api_key)
    agent = Agent(name="math", model=OpenAIChatCompletionsModel("gpt-4o-mini", openai_client=client))
    from autogen_core.models import UserMessage

    first = await llm.create([UserMessage(content=task.question, source="user")])
    return f"{first.content} {(await Runner.run(agent, task.question)).final_output}"
