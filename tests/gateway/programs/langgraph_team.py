"""A solver with a tool, and a critic that sends it back: a graph."""

from langchain_core.messages import HumanMessage, SystemMessage
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.prebuilt import ToolNode, tools_condition
from langgraph.types import Command


@tool
def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


async def team(task, gateway):
    solver, critic = (
        ChatOpenAI(model=name, base_url=gateway.base_url, api_key=gateway.api_key) for name in ("solver", "critic")
    )
    solver = solver.bind_tools([add])

    async def solve(state):
        instruction = SystemMessage("Answer with a number. Use the tool.")
        return {"messages": [await solver.ainvoke([instruction, *state["messages"]])]}

    async def review(state):
        answers = [message for message in state["messages"] if message.type == "ai" and message.content]
        prompt = f"{task.question} The answer is {answers[-1].content if answers else 'missing'}. Say right or wrong."
        verdict = await critic.ainvoke([HumanMessage(prompt)])
        again = "wrong" in verdict.content and len(answers) < 3
        return Command(update={"messages": [HumanMessage(verdict.content)]}, goto="solve" if again else "__end__")

    graph = StateGraph(MessagesState)
    graph.add_node("solve", solve)
    graph.add_node("tools", ToolNode([add]))
    graph.add_node("review", review, destinations=("solve", "__end__"))
    graph.add_edge(START, "solve")
    graph.add_conditional_edges("solve", tools_condition, {"tools": "tools", "__end__": "review"})
    graph.add_edge("tools", "solve")
    state = await graph.compile().ainvoke({"messages": [HumanMessage(task.question)]})
    answers = [message.content for message in state["messages"] if message.type == "ai"]
    return float(answers[-1].strip() == task.ground_truth)
