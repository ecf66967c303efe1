"""Two agents with a task each, one after the other."""

import os

from crewai import LLM, Agent, Crew, Process, Task
from crewai.tools import tool

# CrewAI sends traces to its makers.
os.environ.update(CREWAI_DISABLE_TELEMETRY="true", CREWAI_TRACING_ENABLED="false", OTEL_SDK_DISABLED="true")


@tool("add")
def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


def team(task, gateway):
    def llm(name):
        return LLM(model=f"openai/{name}", base_url=gateway.base_url, api_key=gateway.api_key)

    solver = Agent(role="solver", goal="Compute.", backstory="You compute.", llm=llm("solver"), tools=[add])
    critic = Agent(role="critic", goal="Check.", backstory="You check.", llm=llm("critic"))
    compute = Task(description=task.question, expected_output="A number", agent=solver)
    check = Task(description="Check the number and repeat it.", expected_output="A number", agent=critic)
    crew = Crew(agents=[solver, critic], tasks=[compute, check], process=Process.sequential)
    return crew.kickoff().raw
