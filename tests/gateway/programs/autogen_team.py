"""A solver with a tool and a critic. They take turns, or a selector chooses the speaker."""

from autogen_agentchat.agents import AssistantAgent
from autogen_agentchat.conditions import MaxMessageTermination, TextMentionTermination
from autogen_agentchat.teams import RoundRobinGroupChat, SelectorGroupChat
from autogen_ext.models.openai import OpenAIChatCompletionClient

INFO = {"vision": False, "function_calling": True, "json_output": True, "structured_output": True, "family": "unknown"}


async def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


def model(name, gateway):
    return OpenAIChatCompletionClient(model=name, base_url=gateway.base_url, api_key=gateway.api_key, model_info=INFO)


def agents(gateway, reflect=True):
    solver = AssistantAgent(
        "solver",
        model_client=model("solver", gateway),
        tools=[add],
        system_message="You compute.",
        description="Computes.",
        reflect_on_tool_use=reflect,
    )
    critic = AssistantAgent(
        "critic",
        model_client=model("critic", gateway),
        system_message="Say APPROVE if the answer is right.",
        description="Checks an answer.",
    )
    return [solver, critic]


END = TextMentionTermination("APPROVE", sources=["critic"]) | MaxMessageTermination(12)


async def team(task, gateway):
    result = await RoundRobinGroupChat(agents(gateway), termination_condition=END).run(task=task.question)
    answers = [message.to_text() for message in result.messages if message.source == "solver"]
    return float(task.ground_truth in answers[-1])


async def selector(task, gateway):
    chat = SelectorGroupChat(
        agents(gateway, reflect=False),
        model_client=model("selector", gateway),
        termination_condition=END,
        allow_repeated_speaker=True,
    )
    result = await chat.run(task=task.question)
    answers = [message.to_text() for message in result.messages if message.source == "solver"]
    return float(task.ground_truth in answers[-1])
