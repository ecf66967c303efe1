"""An agent that acts by code, and a manager of one that calls tools."""

from smolagents import CodeAgent, OpenAIModel, ToolCallingAgent, tool


@tool
def add(a: int, b: int) -> int:
    """Add two numbers.

    Args:
        a: The first number.
        b: The second number.
    """
    return a + b


def model(name, gateway):
    return OpenAIModel(model_id=name, api_base=gateway.base_url, api_key=gateway.api_key)


def team(task, gateway):
    agent = CodeAgent(tools=[add], model=model("solver", gateway), max_steps=4, verbosity_level=0)
    return str(agent.run(task.question))


def managed(task, gateway):
    math = ToolCallingAgent(
        tools=[add],
        model=model("solver", gateway),
        max_steps=4,
        name="math",
        description="Computes.",
        verbosity_level=0,
    )
    manager = CodeAgent(
        tools=[], model=model("manager", gateway), managed_agents=[math], max_steps=4, verbosity_level=0
    )
    return str(manager.run(task.question))
