"""Agents with typed output. A tool of one agent asks the other agent."""

from pydantic import BaseModel
from pydantic_ai import Agent, NativeOutput, RunContext, UnexpectedModelBehavior
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.providers.openai import OpenAIProvider


class Answer(BaseModel):
    number: int
    reason: str


async def play(task, gateway, output=Answer):
    provider = OpenAIProvider(base_url=gateway.base_url, api_key=gateway.api_key)
    math = Agent(OpenAIChatModel("math", provider=provider), instructions="You compute.", output_type=int)
    model = OpenAIChatModel("boss", provider=provider)
    boss = Agent(model, instructions="Ask the tool, then answer.", output_type=output)

    @boss.tool
    async def compute(context: RunContext, problem: str) -> int:
        """Ask the agent that computes."""
        return (await math.run(problem, usage=context.usage)).output

    try:
        answer = (await boss.run(task.question)).output
    except UnexpectedModelBehavior:  # the reply does not fit the type after all retries
        return 0.0
    return float(answer.number == int(task.ground_truth))


async def team(task, gateway):
    return await play(task, gateway)


async def native(task, gateway):
    return await play(task, gateway, output=NativeOutput(Answer))
