"""The tools that agents may call by name, as verl's agent-loop worker will load them: names and schemas; and whether a
chat template shows them to the model."""

from __future__ import annotations

import importlib
import re
import tempfile
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeAlias

import yaml
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from verl_mas.checks.verl.model_folder import ChatTemplate
from verl_mas.checks.verl.place import missing, unless_elsewhere
from verl_mas.checks.verl.refusals import Problem, as_refusal, as_refusals, user_code
from verl_mas.checks.verl.rows import sound_rows
from verl_mas.config.merge import SECTION
from verl_mas.config.run import Run
from verl_mas.config.schema import AgentSpec
from verl_mas.errors import ConfigError, ConfigWarning, InvalidInput
from verl_mas.mcp.servers import McpServers
from verl_mas.registry import nearest
from verl_mas.row import EXTRA_INFO
from verl_mas.verl_.registries import tool_formats
from verl_mas.workflow.base import agents_of
from verl_mas.workflow.client import Message
from verl_mas.workflow.codecs import JsonObject
from verl_mas.workflow.tool_sources import tool_of, unknown_tools
from verl_mas.workflow.tools import Tool

TOOL_CONFIG = f"{SECTION}.rollout.multi_turn.tool_config_path"
FUNCTION_TOOLS = f"{SECTION}.rollout.multi_turn.function_tool_path"
MCP = "mas.mcp"
MCP_FIX = "configure MCP servers by mas.mcp.<name>"
# verl loads the file as a module of its own, and its decorator takes a name once per process.
TWICE_FIX = (
    "decorate a name once, in a file that the workflow does not import; or leave out function_tool_path and give the "
    "function in the workflow: act(..., tools=[function])"
)
# OpenAI's schemas; None for a tool whose class has its schema, as constructing it may start a server.
Schemas: TypeAlias = Sequence[JsonObject | None]


@dataclass
class ConfiguredTools:
    """The tools of a configuration by name, and what is wrong with them."""

    tools: dict[str, Tool] = field(default_factory=dict)
    problems: list[Problem] = field(default_factory=list)
    # A file or a server -> the names of its tools.
    sources: dict[str, Set[str]] = field(default_factory=dict)
    # Whether `tools` has every tool.
    complete: bool = True

    def add(self, setting: str, schemas: Schemas, used: Set[str] | None = None) -> None:
        """`used`: the names whose schemas matter; None: all."""
        for schema in schemas:
            if schema is None:
                self.complete = False
                continue
            try:
                tool = Tool(schema)
            except InvalidInput as error:
                refused = as_refusal(error)
                self.problems.append(ConfigError(f"{setting}: {refused.value}", rule=refused.rule, fix=refused.fix))
                continue
            if tool.name in self.tools:
                self.problems.append(_twice(setting, tool.name))
            if used is None or tool.name in used:
                self.problems += _schema_problems(setting, tool)
            self.tools[tool.name] = tool

    def fail(self, problem: Problem) -> None:
        self.problems.append(problem)
        self.complete = False


def configured_tools(run: Run) -> ConfiguredTools:
    """The tools of both files and of all MCP servers, which are started for this and stopped."""
    found = ConfiguredTools()
    for setting, schemas_of in ((TOOL_CONFIG, _native), (FUNCTION_TOOLS, _functions)):
        _read_file(run, found, setting, schemas_of)
    used = {name for member in agents_of(run.mas).values() for name in member.spec.tools}
    _read_servers(run, found, used)
    found.problems += _selections(run, used)
    if found.complete:
        found.problems += unknown_tools(agents_of(run.mas).values(), found.tools)
        found.problems += [_unused(source, names) for source, names in found.sources.items() if not names & used]
    return found


def _read_file(run: Run, found: ConfiguredTools, setting: str, schemas_of: Callable[..., Schemas]) -> None:
    path = OmegaConf.select(run.config, setting)
    if not path:
        return
    file = _found(str(path))
    if file is None:
        found.fail(missing(run.config, setting, str(path), "a file below the current folder, or an absolute path"))
        return
    before = set(found.tools)
    try:
        found.add(setting, schemas_of(setting, file, run.mas.workflow.check_timeout_s))
        found.sources[setting] = found.tools.keys() - before
    except ConfigError as error:
        found.fail(error)


def _read_servers(run: Run, found: ConfiguredTools, used: Set[str]) -> None:
    if not run.mas.mcp:
        return
    with tempfile.TemporaryDirectory() as folder:
        try:
            with McpServers(run.mas.mcp, folder) as servers:
                found.add(MCP, [tool.schema for tool in servers.tools], used)
        except ConfigError as error:
            for part in as_refusals(error):
                found.fail(unless_elsewhere(run.config, part))
    for server in run.mas.mcp:
        found.sources[f"{MCP}.{server}"] = {name for name in found.tools if name.startswith(f"{server}_")}


def _selections(run: Run, used: Set[str]) -> Iterator[ConfigWarning]:
    for first in sound_rows(run.config):
        infos = [row[EXTRA_INFO] for row in first.sample if isinstance(row.get(EXTRA_INFO), dict)]
        chosen = [info["tool_selection"] for info in infos if isinstance(info.get("tool_selection"), list)]
        if names := next((names for names in chosen if names and used.isdisjoint(map(str, names))), None):
            have = ", ".join(sorted(used)) or "none"
            reason = f"no agent has one of these tools, so such a row has none; they have {have}"
            fix = "correct the names, or leave tool_selection out of the data"
            yield ConfigWarning(f"{first.file}: extra_info.tool_selection={names}", reason, fix)


def _unused(source: str, names: Set[str]) -> ConfigWarning:
    fix = f"name its tools in mas.agents.<agent>.tools: {', '.join(sorted(names))}"
    return ConfigWarning(source, reason="no agent has a tool of it, and every agent-loop worker loads it", fix=fix)


def _found(path: str) -> Path | None:
    from verl.utils.import_utils import resolve_config_path

    try:
        file = Path(resolve_config_path(path))
    except (FileNotFoundError, ValueError):
        return None
    return file if file.is_file() else None


def _native(setting: str, file: Path, seconds: float) -> Schemas:
    """Of a file that names classes of tools."""
    try:
        entries = OmegaConf.to_container(OmegaConf.load(file), resolve=True)
        tools = entries["tools"] if isinstance(entries, dict) else None
        classes = [(str(tool["class_name"]), tool["config"]["type"], tool.get("tool_schema")) for tool in tools or ()]
    except yaml.YAMLError as error:
        raise _unreadable(setting, file, str(error)) from error
    # A missing key, or a value of another shape.
    except (OSError, ValueError, LookupError, TypeError, AttributeError, OmegaConfBaseException) as error:
        raise _unreadable(setting, file, f"{type(error).__name__}: {error}") from error
    if not classes:
        raise _unreadable(setting, file, "it lists no tools")
    for class_name, kind, schema in classes:
        if kind != "native":
            raise _unreadable(setting, file, f"{class_name} is of type {kind}, and verl has only native", MCP_FIX)
        _require_class(setting, file, class_name, seconds)
        if schema is not None:
            _require_verls(setting, file, class_name, schema)
    return [schema for _, _, schema in classes]


def _require_class(setting: str, file: Path, class_name: str, seconds: float) -> None:
    module, _, name = class_name.rpartition(".")
    try:
        with user_code(seconds):
            found = getattr(importlib.import_module(module), name)
    except ConfigError as error:
        cause = error.__cause__ or error
        raise _unreadable(setting, file, f"class_name {class_name}: {type(cause).__name__}: {cause}") from error
    if not hasattr(found, "execute"):
        raise _unreadable(setting, file, f"class_name {class_name} is not a BaseTool of verl")


def _require_verls(setting: str, file: Path, class_name: str, schema: object) -> None:
    """verl reads the schemas of this file with a model of its own."""
    from pydantic import ValidationError
    from verl.tools.schemas import OpenAIFunctionToolSchema

    try:
        OpenAIFunctionToolSchema.model_validate(schema)
    except ValidationError as error:
        raise _unreadable(setting, file, f"the tool_schema of {class_name}: {error}") from error


def _functions(setting: str, file: Path, seconds: float) -> Schemas:
    """Of the functions with verl's decorator; the file is loaded as verl loads it."""
    from verl.tools.function_tool import load_function_tools_from_path

    try:
        with user_code(seconds):
            tools = load_function_tools_from_path(str(file))
    except ConfigError as error:
        why = _raised(error.__cause__ or error, file)
        raise _unreadable(setting, file, why, TWICE_FIX if "already registered" in why else "") from error
    if not tools:
        raise _unreadable(setting, file, "no function has the decorator @function_tool")
    return [tool_of(tool).schema for tool in tools]


def _raised(error: BaseException, file: Path) -> str:
    """What the file raised, and its own last line in the traceback; a decorator raises in verl's file."""
    lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == str(file)]
    line = error.lineno if isinstance(error, SyntaxError) else lines[-1] if lines else None
    return f"{f'line {line}: ' if line else ''}{type(error).__name__}: {error}"


def _unreadable(setting: str, file: Path, why: str, fix: str = "") -> ConfigError:
    rule = "verl loads this file in every agent-loop worker; for the check it has mas.workflow.check_timeout_s"
    return ConfigError(f"{setting}={file}: {why}", rule=rule, fix=fix or "correct the file")


def _twice(setting: str, name: str) -> ConfigError:
    rule = "a model calls a tool by its name, so a name is there once in both files and all MCP servers"
    fix = "rename one of the two; a tool of an MCP server has the name of its server before its own"
    return ConfigError(f"{setting} has the tool {name}, which is there already", rule=rule, fix=fix)


def _schema_problems(setting: str, tool: Tool) -> Iterator[Problem]:
    from jsonschema import SchemaError
    from jsonschema.validators import Draft202012Validator, validator_for

    function = tool.schema["function"]
    if not str(function.get("description") or "").strip():
        value = f"{setting}: the tool {tool.name} has no description"
        reason = "a model knows what a tool does from its description"
        yield ConfigWarning(value, reason=reason, fix="describe it in the function's docstring, or in its schema")
    parameters = function.get("parameters", {})
    why = ""
    if not isinstance(parameters, Mapping) or parameters.get("type", "object") != "object":
        why = "it is not the schema of an object"
    else:
        try:
            validator_for(parameters, default=Draft202012Validator).check_schema(parameters)
        except SchemaError as error:
            why = f"{error.json_path}: {error.message}"
    if why:
        value = f"{setting}: the parameters of the tool {tool.name}: {why}"
        rule = "the parameters of a tool are a JSON schema of type object"
        yield ConfigError(value, rule=rule, fix="write {type: object, properties: {...}, required: [...]}")


# Whether a policy that is served here sees its tools in its prompts, and whether verl finds its calls.


FORMAT = f"{SECTION}.rollout.multi_turn.format"
# verl's formats of calls -> what their parser looks for, as it stands in a chat template that asks for such calls.
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


def check_tool_prompts(run: Run, tools: Mapping[str, Tool]) -> Iterator[Problem]:
    """For the tools that agents name."""
    for member in agents_of(run.mas).values():
        schemas = [tools[name].schema for name in member.spec.tools if name in tools]
        if schemas and run.mas.policies[member.spec.policy].remote is None:
            yield from rendered_tools(run, member.spec, schemas)


def rendered_tools(run: Run, agent: AgentSpec, schemas: Sequence[JsonObject]) -> Iterator[Problem]:
    view = run.view(agent.policy)
    parser = str(view.get("rollout.multi_turn.format"))
    # Of its registry, which plugins may add to, if it is none that we know.
    if parser not in FORMATS and parser not in tool_formats():
        rule = "it is the format of calls that verl finds in the replies of a model"
        yield ConfigError(f"{FORMAT}={parser}", rule=rule, fix=nearest(parser, list(FORMATS)))
        return
    chat = ChatTemplate.of_model(view.section("model"))
    if chat is None:
        return  # check_model says what is missing.
    what = f"the chat template of {chat.folder}"
    fix = f"set {SECTION}.model.custom_chat_template to a template that takes tools"
    settings = {**(run.config.data.get("apply_chat_template_kwargs") or {}), **agent.chat_template_kwargs}
    try:
        without, given = (chat.render(PLAIN, {**settings, "tools": tools}) for tools in (None, list(schemas)))
        whole = chat.render([*PLAIN, *_called(schemas[0])], {**settings, "tools": list(schemas)})
    except ValueError as error:
        value = f"{what} with a call of a tool: {error}"
        reason = "an act that calls a tool fails if its template cannot render the call and its result"
        yield ConfigWarning(value, reason=reason, fix=fix)
        return
    if without == given:
        value = f"{what} renders the same prompt with and without tools"
        reason = "the model does not see which tools it has"
        yield ConfigWarning(value, reason=reason, fix=f"describe them in the prompt, or {fix}")
    elif parser in FORMATS and not re.search(FORMATS[parser], whole):
        fitting = [name for name, pattern in FORMATS.items() if re.search(pattern, whole)]
        reason = f"a call in this template has nothing that {parser} looks for, so no call would be found"
        fix = f"set {FORMAT}={' or '.join(fitting)}" if fitting else "use a model whose calls verl can read"
        yield ConfigWarning(f"{FORMAT}={parser} with {what}", reason=reason, fix=fix)


PLAIN: Sequence[Message] = ({"role": "user", "content": "?"},)


def _called(schema: JsonObject) -> list[Message]:
    function = {"name": schema["function"]["name"], "arguments": {}}
    calls = [{"type": "function", "id": "call00000", "function": function}]
    return [
        {"role": "assistant", "content": "", "tool_calls": calls},
        {"role": "tool", "content": "!", "name": function["name"], "tool_call_id": "call00000"},
    ]
