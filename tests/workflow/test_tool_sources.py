"""Objects that become tools, their schemas, and objects that are refused."""

import asyncio
import functools
from typing import Any, Literal

import pytest

import verl_mas
from verl_mas.config.schema import AgentSpec
from verl_mas.errors import ConfigError, FaultKind, WorkflowError
from verl_mas.testing.scripted_llm import ScriptedLLM, calls
from verl_mas.workflow import Outcome
from verl_mas.workflow.tool_sources import tool_of, tools_of, toolsets
from verl_mas.workflow.tools import CallContext, Tool


def press(button: Literal["red", "blue"], times: int = 1, labels: list[str] | None = None, how: dict = {}) -> str:  # noqa: B006
    """Press a button.

    It makes a noise.

    Args:
        button: Its name,
            in English: short.
        times (int): How often.

    Returns:
        The noise.
    """
    return button * times


class Bell:
    """A bell."""

    def __call__(self, loud: bool | int) -> str:
        """Ring."""
        return "!" if loud else "."

    def ring(self) -> str:
        """Ring."""
        return "ring"


def called(tool: Tool, arguments: dict) -> object:
    return asyncio.run(tool.call(arguments, CallContext()))


def test_a_schema_is_made_of_type_hints_and_docstring():
    properties = {
        "button": {"type": "string", "enum": ["red", "blue"], "description": "Its name, in English: short."},
        "times": {"type": "integer", "description": "How often."},
        "labels": {"type": "array", "items": {"type": "string"}, "nullable": True},
        "how": {"type": "object"},
    }
    parameters = {"type": "object", "properties": properties, "required": ["button"]}
    function = {"name": "press", "description": "Press a button.\n\nIt makes a noise.", "parameters": parameters}
    assert tool_of(press).schema == {"type": "function", "function": function}


def test_a_schema_is_that_of_verl_for_the_same_function():
    from verl.tools.function_tool import _build_schema_from_fn

    def search(query: str, limit: int = 3, exact: bool = False) -> str:
        """Search the books.

        Args:
            query: What to look for.
            limit: How many.
            exact: Whether as it is written.
        """
        return query

    verls = _build_schema_from_fn(search, "search")
    assert tool_of(search).schema == verls.model_dump(exclude_unset=True, exclude_none=True)


def test_functions_methods_and_objects_are_called_by_name():
    async def later(x: int) -> int:
        """Doubles."""
        return 2 * x

    assert called(tool_of(press), {"button": "red", "times": 2}) == "redred"
    assert called(tool_of(later), {"x": 2}) == 4
    assert called(tool_of(Bell().ring), {}) == "ring"
    assert called(tool_of(Bell()), {"loud": True}) == "!" and tool_of(Bell()).name == "Bell"
    assert tool_of(Bell()).schema["function"]["parameters"]["properties"]["loud"]["type"] == ["boolean", "integer"]


def bare(x: int): ...


def unhinted(x):
    """Doubles."""


def variadic(*x: int):
    """Doubles."""


def untyped(x: Any):
    """Doubles."""


def elsewhere(x: "NotImported"):  # noqa: F821
    """Doubles."""


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (bare, "the tool bare without a docstring"),
        (unhinted, r"the tool unhinted\(x\) without a type hint"),
        (variadic, r"the tool variadic\(\*x"),
        (untyped, r"the tool untyped\(x: typing.Any\)"),
        (elsewhere, "NotImported"),
        (lambda: 3, "<lambda>"),
        (functools.partial(press, "red"), "the tool partial"),
        ("press", "mas.agents.<name>.tools"),
        (3, r"tools=\[3\]"),
        ({"name": "press"}, "OpenAI's schema of a tool"),
        ({"type": "function", "function": {"name": "press it"}}, "a tool named 'press it'"),
        (type("Half", (), {"tool_schema": tool_of(press).schema})(), "add `async def call"),
    ],
)
def test_an_object_that_cannot_be_a_tool_is_refused(given, message):
    with pytest.raises(WorkflowError, match=message):
        tool_of(given)


def test_tools_have_names_of_their_own_and_are_a_list_or_a_function_that_makes_it():
    with pytest.raises(WorkflowError, match="two tools named 'press'"):
        tools_of([press, tool_of(press)])
    made = iter([[press], [Bell().ring]])
    for given in (press, lambda x: [press], lambda: press, {"press": press}, "press"):
        with pytest.raises(WorkflowError, match=r"write tools=\[...\]"):
            toolsets([], given, 1)
    with pytest.raises(WorkflowError, match=r"made \['press'\] and \['ring'\]"):
        toolsets([], lambda: next(made), 2)
    bells = []

    def with_bell():
        bells.append(Bell())
        return [bells[-1].ring]

    assert len(toolsets([tool_of(press)], with_bell, 3)) == len(bells) == 3


def test_a_wrong_tool_of_an_act_is_an_error_of_the_workflow(run):
    async def wrong(task, team):
        return Outcome(answer=await team.a.act("q", tools=[bare]), reward=0.0)

    async def late(task, team):
        return Outcome(answer=await team.a.conversation("q").act(tools=[press]), reward=0.0)

    for workflow, message in ((wrong, "without a docstring"), (late, "conversation(tools=[...])")):
        done = run(workflow, ScriptedLLM("x"))
        assert done.faults[0].kind is FaultKind.WORKFLOW and not done.session.replies
        assert message in done.faults[0].cause


def test_without_verl_names_of_tools_are_those_given_to_run():
    llm = ScriptedLLM([calls(("press", {"button": "red"})), "done"])
    agents = {"solver": AgentSpec(tools=["press"])}
    session = verl_mas.run("single", "q", llm, agents=agents, tools=[press])
    assert session.replies[0].tool_calls[0].result == "red"
    with pytest.raises(ConfigError, match=r"mas.agents.solver.tools has 'press'"):
        verl_mas.run("single", "q", llm, agents=agents)
