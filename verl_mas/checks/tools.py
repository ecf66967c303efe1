"""Loads tools as verl's agent-loop worker does, and checks that the tools which agents name exist, and that chat
templates show the tools to the model."""

import re
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from omegaconf import OmegaConf

from verl_mas.checks.examined import ExaminedRun
from verl_mas.checks.place import missing, unless_elsewhere
from verl_mas.checks.refusals import Problem, as_refusals, user_code
from verl_mas.config.merge import SECTION
from verl_mas.config.schema import AgentSpec
from verl_mas.environment.mcp.servers import McpServers
from verl_mas.errors import ConfigError, ConfigWarning, InvalidInput
from verl_mas.planning.model_folder import chat_of
from verl_mas.workflow.client import Message
from verl_mas.workflow.codecs import JsonObject
from verl_mas.workflow.tool_sources import tool_of, unknown_tools
from verl_mas.workflow.tools import Tool

TOOL_CONFIG = f"{SECTION}.rollout.multi_turn.tool_config_path"
FUNCTION_TOOLS = f"{SECTION}.rollout.multi_turn.function_tool_path"
FORMAT = f"{SECTION}.rollout.multi_turn.format"
# verl's format of tool calls -> a pattern. The parser of the format finds a call only if the call, as the chat template
# renders it, matches the pattern.
FORMATS = {
    "hermes": r"<tool_call>\s*\{",
    "gpt-oss": r"to=functions\.",
    "qwen3_coder": r"<tool_call>\s*<function=",
    "glm": r"<arg_key>",
    "seed": r"<seed:tool_call>",
    "minimax": r"<minimax:tool_call>",
    "kimi": r"<\|tool_call_begin\|>",
    "deepseek_v4": r"DSML",
    "gemma4": r"<\|tool_call>call:",
}
PLAIN: Sequence[Message] = ({"role": "user", "content": "?"},)


def configured_tools(run: ExaminedRun) -> tuple[dict[str, Tool], list[Problem]]:
    """Load the tools of both tool files and of all MCP servers, and stop the servers again. Returns the tools and the
    problems."""
    tools, problems, complete = dict[str, Tool](), list[Problem](), True
    for setting, schemas_of in ((TOOL_CONFIG, _native), (FUNCTION_TOOLS, _functions), ("mas.mcp", _of_servers)):
        try:
            schemas = schemas_of(run, setting)
            tools |= {tool.name: tool for tool in map(Tool, filter(None, schemas))}
        except InvalidInput as error:
            problems += [unless_elsewhere(run.config, part) for part in as_refusals(error)]
            complete = False
        else:
            # If a tool's schema is not in the file, only an instance of its class has the schema. Do not construct the
            # instance, because it may start a server. The tool's name is then unknown, so skip `unknown_tools`.
            complete = complete and None not in schemas
    if complete:
        problems += unknown_tools(run.agents.values(), tools)
    return tools, problems


def _file(run: ExaminedRun, setting: str) -> Path | None:
    from verl.utils.import_utils import resolve_config_path

    if not (path := run.get(setting)):
        return None
    try:
        file = Path(resolve_config_path(str(path)))
    except (FileNotFoundError, ValueError):
        file = Path(str(path))
    if not file.is_file():
        found = missing(run.config, setting, str(path), "a file below the current folder, or an absolute path")
        raise ConfigError(found.value, rule="verl loads this file in every agent-loop worker", fix=found.fix)
    return file


def _native(run: ExaminedRun, setting: str) -> Sequence[JsonObject | None]:
    """Read the schemas from a file that names classes of tools, as verl reads it."""
    if (file := _file(run, setting)) is None:
        return []
    entries = OmegaConf.to_container(OmegaConf.load(file), resolve=True)
    assert isinstance(entries, dict), f"{file} is a mapping with tools"
    kinds = {tool["class_name"]: tool["config"]["type"] for tool in entries["tools"]}
    if others := [name for name, kind in kinds.items() if kind != "native"]:
        rule, fix = "teams take native tools", "configure MCP servers by mas.mcp.<name>"
        raise ConfigError(f"{setting}={file}: {others[0]} is of type {kinds[others[0]]}", rule=rule, fix=fix)
    return [tool.get("tool_schema") for tool in entries["tools"]]


def _functions(run: ExaminedRun, setting: str) -> Sequence[JsonObject]:
    """Load a file as verl does, and return the schemas of the functions with verl's decorator."""
    if (file := _file(run, setting)) is None:
        return []
    from verl.tools.function_tool import load_function_tools_from_path

    with user_code(run.mas.workflow.check_timeout_s):
        tools = load_function_tools_from_path(str(file))
    if not tools:
        rule = "no function of the file has the decorator @function_tool"
        raise ConfigError(f"{setting}={file}", rule=rule, fix="decorate the functions")
    return [tool_of(tool).schema for tool in tools]


def _of_servers(run: ExaminedRun, setting: str) -> Sequence[JsonObject]:
    if not run.mas.mcp:
        return []
    with tempfile.TemporaryDirectory() as folder, McpServers(run.mas.mcp, folder) as servers:
        return [tool.schema for tool in servers.tools]


# Check that a policy which is not remote sees its tools in its prompts, and that verl's parser finds its tool calls:
# verl#1569, verl#4998, verl#3070.


def check_tool_prompts(run: ExaminedRun, tools: Mapping[str, Tool]) -> Iterator[Problem]:
    """Check that the chat template of each agent's policy renders the agent's tools. Remote policies are skipped."""
    for agent in run.agents.values():
        schemas = [tools[name].schema for name in agent.spec.tools if name in tools]
        if schemas and run.mas.policies[agent.spec.policy].remote is None:
            yield from rendered_tools(run, agent.spec, schemas)


def rendered_tools(run: ExaminedRun, agent: AgentSpec, schemas: Sequence[JsonObject]) -> Iterator[Problem]:
    view = run.view(agent.policy)
    parser, chat = str(view.get("rollout.multi_turn.format")), chat_of(view.section("model"))
    if chat is None:
        return  # `check_model` reports what is missing.
    what, fix = f"the chat template of {view.get('model.path')}", f"set {SECTION}.model.custom_chat_template"
    settings = {**(run.config.data.get("apply_chat_template_kwargs") or {}), **agent.chat_template_kwargs}
    try:
        without, given = (chat.render(PLAIN, {**settings, "tools": tools}) for tools in (None, list(schemas)))
        whole = chat.render([*PLAIN, *_called(schemas[0])], {**settings, "tools": list(schemas)})
    except ValueError as error:
        reason = "an act that calls a tool fails if its template cannot render the call and its result"
        yield ConfigWarning(f"{what} with a call of a tool: {error}", reason, fix)
        return
    if without == given:
        value = f"{what} renders the same prompt with and without tools"
        fix = f"describe them in the prompt, or {fix}"
        yield ConfigWarning(value, "the model does not see which tools it has", fix)
    elif parser in FORMATS and not re.search(FORMATS[parser], whole):
        fitting = [name for name, pattern in FORMATS.items() if re.search(pattern, whole)]
        reason = f"a call in this template has nothing that {parser} looks for, so no call would be found"
        fix = f"set {FORMAT}={' or '.join(fitting)}" if fitting else "use a model whose calls verl can read"
        yield ConfigWarning(f"{FORMAT}={parser} with {what}", reason, fix)


def _called(schema: JsonObject) -> list[Message]:
    function = {"name": schema["function"]["name"], "arguments": {}}
    calls = [{"type": "function", "id": "call00000", "function": function}]
    return [
        {"role": "assistant", "content": "", "tool_calls": calls},
        {"role": "tool", "content": "!", "name": function["name"], "tool_call_id": "call00000"},
    ]
