"""Adapters for verl's tools: functions with verl's decorator, and subclasses of verl's BaseTool. verl is imported only
when such a tool is used."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, cast
from uuid import uuid4

from verl_mas.errors import WorkflowError
from verl_mas.workflow.codecs import JsonObject
from verl_mas.workflow.tools import CallContext, CallTool, ToolResult

if TYPE_CHECKING:
    from verl.experimental.agent_loop.tool_agent_loop import AgentData
    from verl.tools.base_tool import BaseTool
    from verl.tools.schemas import ToolResponse

# Key in `CallContext.state` of the `agent_data` object that verl passes to its tools. Tools store their state in the
# `extra_fields` of this object.
AGENT_DATA = "agent_data"


def decorated(function: object) -> object | None:
    """Return the tool that verl's decorator registered for a function, or None if it registered no tool. The decorator
    returns the function itself, so the tool is found in verl's registry."""
    module = sys.modules.get("verl.tools.function_tool")
    if module is None:
        return None
    return next((tool for tool in module.FUNCTION_TOOL_REGISTRY.values() if tool.fn is function), None)


def schema(tool: object) -> JsonObject:
    """Return a tool's OpenAI schema as a mapping. The tool may store it as a mapping or as a pydantic model of verl."""
    given = getattr(tool, "tool_schema")  # noqa: B009
    dumped = given if isinstance(given, dict) else given.model_dump(exclude_unset=True, exclude_none=True)
    return cast(JsonObject, dumped)


def with_results_of_verl(call: CallTool) -> CallTool:
    """Read the result of a function as verl does: a text, a mapping, or a tuple that starts with one of them."""

    async def read(arguments: JsonObject, context: CallContext) -> object:
        from verl.tools.function_tool import normalize_function_tool_return

        returned = await call(arguments, context)
        if isinstance(returned, ToolResult):
            return returned
        response, reward, _ = normalize_function_tool_return(returned)
        return _result(response, reward)

    return read


def call_base_tool(tool: BaseTool) -> CallTool:
    """Make a CallTool for a tool of a subclass of verl's BaseTool. As in verl, each call creates an instance of the
    tool, executes it and releases it."""

    async def call(arguments: JsonObject, context: CallContext) -> object:
        kwargs = (context.fields.get("tools_kwargs") or {}).get(tool.name, {})
        instance, _ = await tool.create(create_kwargs=kwargs.get("create_kwargs", {}))
        try:
            response, reward, _ = await tool.execute(instance, arguments, agent_data=_agent_data(context))
        finally:
            if instance:
                await tool.release(instance)
        return _result(response, reward)

    return call


def extra_fields_of(state: Mapping[str, object]) -> Mapping[str, object]:
    """Return the values that verl's tools stored for the reward function, in `extra_fields` of their `agent_data`."""
    data = cast("AgentData | None", state.get(AGENT_DATA))
    return data.extra_fields if data else {}


def _result(response: ToolResponse, reward: float | None) -> ToolResult:
    if response.video:
        rule = "verl 0.9.1 passes texts and images of tools to the model"
        raise WorkflowError("a tool returned a video", rule=rule, fix="return some of its frames as images")
    return ToolResult(response.text or "", reward, [image for image in response.image or () if image is not None])


def _agent_data(context: CallContext) -> object:
    from verl.experimental.agent_loop.tool_agent_loop import AgentData

    if AGENT_DATA not in context.state:
        context.state[AGENT_DATA] = AgentData(
            messages=context.messages,
            image_data=[],
            video_data=[],
            audio_data=None,
            mm_processor_kwargs=None,
            metrics={},
            request_id=uuid4().hex,
            tools_kwargs=context.fields.get("tools_kwargs") or {},
        )
    return context.state[AGENT_DATA]
