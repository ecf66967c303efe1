"""A supervisor hands over to two agents. Each agent has a tool."""

from langchain.agents import create_agent
from langchain_core.messages import HumanMessage
from langchain_openai import ChatOpenAI
from langgraph_supervisor import create_supervisor


def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


def headcount(company: str) -> str:
    """How many people work at a company."""
    return f"{company}: {len(company)}"


async def answer(task, gateway, output_mode):
    def llm(name):
        return ChatOpenAI(model=name, base_url=gateway.base_url, api_key=gateway.api_key)

    math = create_agent(model=llm("math"), tools=[add], name="math", system_prompt="You compute.")
    research = create_agent(model=llm("research"), tools=[headcount], name="research", system_prompt="You look up.")
    workflow = create_supervisor(
        [research, math],
        model=llm("supervisor"),
        prompt="You manage two agents, research and math. Answer at the end.",
        output_mode=output_mode,
    )
    result = await workflow.compile().ainvoke({"messages": [HumanMessage(task.question)]})
    return result["messages"][-1].content


async def team(task, gateway):
    return await answer(task, gateway, "last_message")


async def full_history(task, gateway):
    return await answer(task, gateway, "full_history")
