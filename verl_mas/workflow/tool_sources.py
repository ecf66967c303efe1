"""Converts functions, bound methods, verl's tools and schemas to `Tool` objects."""

from __future__ import annotations

import inspect
import re
import sys
import textwrap
import types
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, Union, cast, get_args, get_origin, get_type_hints
from uuid import uuid4

from verl_mas.config.registry import nearest
from verl_mas.errors import ConfigError, WorkflowError
from verl_mas.util.threads import in_thread
from verl_mas.workflow.codecs import JsonObject
from verl_mas.workflow.tools import CallContext, CallTool, Tool, ToolLike, ToolResult, Tools

if TYPE_CHECKING:
    from verl.experimental.agent_loop.tool_agent_loop import AgentData
    from verl.tools.base_tool import BaseTool
    from verl.tools.schemas import ToolResponse

    from verl_mas.workflow.agents import ResolvedAgent


def tool_of(given: ToolLike) -> Tool:
    """Convert `given` to a Tool. Raises WorkflowError if it cannot be converted."""
    if isinstance(given, Tool):
        return given
    if isinstance(given, dict):
        return Tool(given)
    tool = decorated(given) or given
    if hasattr(tool, "tool_schema"):
        return Tool(schema(tool), _call_of(tool))
    if not callable(tool):
        rule = "a tool is a function, a tool of verl, a verl_mas.Tool or an OpenAI schema"
        fix = "give the function itself; names of configured tools go to mas.agents.<name>.tools"
        raise WorkflowError(f"tools=[{given!r:.80}]", rule=rule, fix=fix)
    # Calls of functions are made in order, because a function may change an environment. For example, `look` may
    # return something else after `press` than before it.
    return Tool(schema_of(tool), call_function(tool), in_order=True)


def tools_of(given: Iterable[ToolLike]) -> dict[str, Tool]:
    """Convert tools and map them by name. Raises WorkflowError if two tools have the same name."""
    named: dict[str, Tool] = {}
    for tool in map(tool_of, given):
        if tool.name in named:
            fix = "rename one of them, or give the agent only one"
            raise WorkflowError(f"two tools named {tool.name!r}", rule="a model calls a tool by its name", fix=fix)
        named[tool.name] = tool
    return named


def toolsets(configured: Iterable[Tool], given: Tools, n: int) -> list[dict[str, Tool]]:
    """Return the tools of each of `n` candidates: the configured tools and `given`. If `given` is a function without
    parameters, it is called for each candidate."""
    if not callable(given) or (inspect.isroutine(given) and inspect.signature(given).parameters):
        return [tools_of([*configured, *_listed(given)])] * n
    sets = [tools_of([*configured, *_listed(given())]) for _ in range(n)]
    for other in sets[1:]:
        if [tool.schema for tool in other.values()] != [tool.schema for tool in sets[0].values()]:
            value = f"tools={given!r:.80} made {list(sets[0])} and {list(other)}"
            rule = "the candidates of a branch share a prompt, so their tools have the same schemas"
            raise WorkflowError(
                value, rule=rule, fix="make the same tools for every candidate, each with its own state"
            )
    return sets


def _listed(given: object) -> Iterable[ToolLike]:
    if not isinstance(given, list | tuple):
        rule = "tools are a list, or a function without arguments that makes the list for each candidate"
        raise WorkflowError(f"tools={given!r:.80}", rule=rule, fix="write tools=[...]")
    return given


def unknown_tools(agents: Iterable[ResolvedAgent], known: Iterable[str]) -> Iterator[ConfigError]:
    """Yield an error for each name in `mas.agents.<name>.tools` that is not in `known`."""
    names = sorted(known)
    rule = "a tool is one of rollout.multi_turn.tool_config_path, function_tool_path or mas.mcp, or without verl "
    rule += "one of run(..., tools=[...])"
    for agent in agents:
        for name in agent.spec.tools:
            if name not in names:
                yield ConfigError(f"mas.agents.{agent.name}.tools has {name!r}", rule=rule, fix=nearest(name, names))


def _call_of(tool: Any) -> CallTool:
    """Return the function that calls `tool`, which is a tool of verl or an object with a `call` method."""
    if hasattr(tool, "execute"):
        return call_base_tool(tool)
    if hasattr(tool, "fn"):
        return with_results_of_verl(call_function(tool.fn))
    if not hasattr(tool, "call"):
        rule = "an object with a tool_schema has a method `call`, or `execute` as verl's BaseTool"
        raise WorkflowError(f"tools=[{tool!r:.80}]", rule=rule, fix="add `async def call(self, parameters)`")

    async def call(arguments: JsonObject, context: CallContext) -> object:
        return await _called(tool.call, arguments)

    return call


def call_function(function: Callable[..., object]) -> CallTool:
    """Make a CallTool that passes arguments to `function` by name. A function that is not async runs in a thread."""

    async def call(arguments: JsonObject, context: CallContext) -> object:
        return await _called(function, **arguments)

    return call


async def _called(function: Callable[..., object], *args: object, **kwargs: object) -> object:
    call = partial(function, *args, **kwargs)
    returned = call() if inspect.iscoroutinefunction(function) else await in_thread(call)
    return await returned if inspect.isawaitable(returned) else returned


TYPES = {str: "string", int: "integer", float: "number", bool: "boolean", dict: "object", list: "array"}
VARIADIC = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD, inspect.Parameter.POSITIONAL_ONLY)
# Headings of sections in Google-style docstrings.
SECTION = re.compile(r"^(Args|Arguments|Returns|Raises|Yields|Examples?|Notes?):\s*$", re.MULTILINE)
# Matches `button: Its name.` or `button (str): Its name.`, with more deeply indented lines after it.
ARGUMENT = re.compile(r"^(\w+)(?: *\([^)]*\))?: *(.*(?:\n[ \t]+.*)*)", re.MULTILINE)


def schema_of(function: Callable[..., object]) -> JsonObject:
    """Make the schema of a function for a model, from its name, docstring and parameters."""
    name = getattr(function, "__name__", type(function).__name__)
    text, described = _docstring(function, name)
    properties, required = {}, []
    for parameter, hint in _parameters(function, name):
        properties[parameter.name] = _property(hint, f"{name}({parameter.name}: {hint!r})")
        if parameter.name in described:
            properties[parameter.name]["description"] = described[parameter.name]
        if parameter.default is inspect.Parameter.empty:
            required.append(parameter.name)
    parameters = {"type": "object", "properties": properties, "required": required}
    return {"type": "function", "function": {"name": name, "description": text, "parameters": parameters}}


def _parameters(function: Callable[..., object], name: str) -> Iterator[tuple[inspect.Parameter, object]]:
    # If `function` is an object with `__call__`, its type hints are on `__call__`.
    hinted = function if inspect.isroutine(function) else type(function).__call__
    try:
        hints, signature = get_type_hints(hinted), inspect.signature(function)
    except (NameError, TypeError, ValueError) as error:
        fix = "import the types at the top of the file"
        raise _wrong(f"{name}: {error}", "a tool has type hints that can be read", fix) from error
    for parameter in signature.parameters.values():
        if parameter.kind in VARIADIC:
            raise _wrong(
                f"{name}({parameter})", "a model passes each argument by its name", "give every parameter a name"
            )
        if parameter.name not in hints:
            value, fix = f"{name}({parameter.name}) without a type hint", f"write {parameter.name}: str, or its type"
            raise _wrong(value, "a model knows the type of an argument from its hint", fix)
        yield parameter, hints[parameter.name]


def _docstring(function: Callable[..., object], name: str) -> tuple[str, dict[str, str]]:
    """Return the docstring's text before its sections, and the descriptions of arguments by name."""
    whole = inspect.getdoc(function) if inspect.isroutine(function) else inspect.getdoc(type(function))
    if not whole:
        rule = "a model knows what a tool does from its docstring"
        raise _wrong(f"{name} without a docstring", rule, 'write """What it does, and what it returns."""')
    text, *sections = SECTION.split(whole)
    described = dict[str, str]()
    for title, section in zip(sections[::2], sections[1::2], strict=True):
        if title in ("Args", "Arguments"):
            arguments = ARGUMENT.findall(textwrap.dedent(section.strip("\n")))
            described = {argument: " ".join(lines.split()) for argument, lines in arguments}
    return text.strip(), described


def _property(hint: object, where: str) -> JsonObject:
    origin, args = get_origin(hint) or hint, get_args(hint)
    if origin in (Union, types.UnionType):
        parts = [_property(arg, where) for arg in args if arg is not types.NoneType]
        union = parts[0] if len(parts) == 1 else {"type": [part["type"] for part in parts]}
        return {**union, "nullable": True} if types.NoneType in args else union
    if origin is Literal:
        kinds = dict.fromkeys(TYPES.get(type(value)) for value in args)
        if None not in kinds:
            return {"type": next(iter(kinds)) if len(kinds) == 1 else list(kinds), "enum": list(args)}
    elif isinstance(origin, type) and origin in TYPES:
        schema: JsonObject = {"type": TYPES[origin]}
        if origin is list and args:
            schema["items"] = _property(args[0], where)
        if origin is dict and len(args) == 2:
            schema["additionalProperties"] = _property(args[1], where)
        return schema
    rule = "a model writes arguments as JSON, so types are str, int, float, bool, list, dict, Literal and their unions"
    raise _wrong(where, rule, "use one of these types, and convert the value in the function")


def _wrong(value: str, rule: str, fix: str) -> WorkflowError:
    return WorkflowError(f"the tool {value}", rule=rule, fix=fix)


# -- verl's tools: functions with verl's decorator, and subclasses of verl's BaseTool. verl is imported only when such a
# tool is used. --------------------------------------------------------------------------------------------------------

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
