"""Whether the tools that agents may call exist, as verl's agent-loop worker will load them."""

from __future__ import annotations

import importlib.util
import traceback
from collections.abc import Iterator, Mapping
from pathlib import Path

import yaml
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from verl_mas.checks.place import missing
from verl_mas.checks.refusals import Problem
from verl_mas.config.merge import SECTION
from verl_mas.config.schema import MasConfig
from verl_mas.errors import ConfigError
from verl_mas.registry import nearest
from verl_mas.workflow.base import agents_of

TOOL_CONFIG = f"{SECTION}.rollout.multi_turn.tool_config_path"
FUNCTION_TOOLS = f"{SECTION}.rollout.multi_turn.function_tool_path"


def check_tools(config: DictConfig, mas: MasConfig) -> Iterator[Problem]:
    """The files, and the names in mas.agents.<agent>.tools."""
    known: set[str] = set()
    readable = True
    for setting, names_of in ((TOOL_CONFIG, _native), (FUNCTION_TOOLS, _functions)):
        path = OmegaConf.select(config, setting)
        if not path:
            continue
        file = _found(str(path))
        if file is None:
            yield missing(config, setting, str(path), "a file below the current folder, or an absolute path")
            readable = False
            continue
        try:
            names = names_of(setting, file)
        except ConfigError as error:
            yield error
            names = None
        readable = readable and names is not None
        known |= names or set()
    for name, member in agents_of(mas).items():
        if member.spec.tools and mas.policies[member.spec.policy].remote is not None:
            yield _on_a_remote_policy(name, member.spec.tools)
        elif readable:
            yield from (_unknown(name, tool, known) for tool in member.spec.tools if tool not in known)


def _found(path: str) -> Path | None:
    from verl.utils.import_utils import resolve_config_path

    try:
        file = Path(resolve_config_path(path))
    except (FileNotFoundError, ValueError):
        return None
    return file if file.is_file() else None


def _native(setting: str, file: Path) -> set[str] | None:
    """The names in a file of tool classes; None if a class names itself, as making it may start a server."""
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
    for class_name, kind, _ in classes:
        if kind != "native" or not _importable(class_name):
            raise _unreadable(setting, file, f"class_name {class_name} of type {kind} cannot be imported")
    schemas = [schema for _, _, schema in classes]
    if any(schema is None for schema in schemas):
        return None
    return {str(_at(schema, "function", "name")) for schema in schemas}


def _at(value: object, *keys: str) -> object:
    for key in keys:
        value = value.get(key) if isinstance(value, Mapping) else None
    return value


def _importable(class_name: str) -> bool:
    module, _, name = class_name.rpartition(".")
    try:
        return bool(module and name) and importlib.util.find_spec(module) is not None
    except (ImportError, ValueError):
        return False


def _functions(setting: str, file: Path) -> set[str] | None:
    """The names of the functions with verl's decorator; the file is loaded as verl loads it."""
    from verl.tools.function_tool import load_function_tools_from_path

    try:
        names = {tool.name for tool in load_function_tools_from_path(str(file))}
    except Exception as error:  # the user's code may raise anything
        raise _unreadable(setting, file, f"{_place(error, file)}{type(error).__name__}: {error}") from error
    if not names:
        raise _unreadable(setting, file, "no function has the decorator @function_tool")
    return names


def _place(error: Exception, file: Path) -> str:
    """The line of the file that raised."""
    lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == str(file)]
    line = error.lineno if isinstance(error, SyntaxError) else lines[-1] if lines else None
    return f"line {line}: " if line else ""


def _unreadable(setting: str, file: Path, why: str) -> ConfigError:
    return ConfigError(
        f"{setting}={file}: {why}",
        rule="verl loads the tools of this file in every agent-loop worker",
        fix="correct the file",
    )


def _unknown(agent: str, tool: str, known: set[str]) -> ConfigError:
    return ConfigError(
        f"mas.agents.{agent}.tools has {tool!r}",
        rule=f"a tool is one of {TOOL_CONFIG} or {FUNCTION_TOOLS}",
        fix=nearest(tool, sorted(known)) if known else f"set {FUNCTION_TOOLS} to a file with @function_tool functions",
    )


def _on_a_remote_policy(agent: str, tools: list[str]) -> ConfigError:
    return ConfigError(
        f"mas.agents.{agent}.tools={tools} on a remote policy",
        rule="verl runs the tools of the policies that it serves",
        fix=f"remove mas.agents.{agent}.tools, or let the agent act on a policy without remote",
    )
