"""A manager that writes code asks an agent that calls tools."""

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


def managed(task, gateway):
    brief = {"max_steps": 4, "verbosity_level": 0}
    math = ToolCallingAgent(tools=[add], model=model("solver", gateway), name="math", description="Computes.", **brief)
    manager = CodeAgent(tools=[], model=model("manager", gateway), managed_agents=[math], **brief)
    return str(manager.run(task.question))
