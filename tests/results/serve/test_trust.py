"""Code, files and addresses for which a team of somebody else needs the user's trust."""

import re
from dataclasses import fields, is_dataclass
from typing import get_type_hints

import pytest

from verl_mas.config.values import load_dataclass
from verl_mas.results.serve.trust import asks
from verl_mas.workflow.base import WORKFLOWS
from verl_mas.workflow.team_file import TeamFile


def team(**settings) -> TeamFile:
    content = {"format": 1, "workflow": {"name": "single"}, "agents": {"a": {}}, "policies": {"main": {}}, **settings}
    return load_dataclass(TeamFile, content, "x")


# Arguments that can name a file, a module, a command or an address: a team of somebody else is asked for them.
ASKED = {
    *("Execution.packages", "Execution.url", "ReferredProgram.command", "ReferredProgram.function"),
    *("Program.pass_env", "ReferredProgram.python", "ReferredProgram.preload"),
    *("Rated.settings", "LeaderWorkers.retriever", "FoldingRules.instruction"),
    *("Searching.retriever", "Verifiers.taskset", "Verifiers.options"),
    *("Verifiers.environment", "Verifiers.python", "Verifiers.folder"),
}


def arguments_with_texts(kind):
    """Yield arguments that can be strings, named by the class that declares them."""
    hints = get_type_hints(kind)
    for item in fields(kind):
        if is_dataclass(hints[item.name]):
            yield from arguments_with_texts(hints[item.name])
        elif set(re.findall(r"\bstr\b|Any|object|Mapping", str(hints[item.name]))):
            [*_, owner] = (base for base in kind.__mro__ if item.name in vars(base).get("__annotations__", {}))
            yield f"{owner.__name__}.{item.name}", item.name in getattr(kind, "safe_arguments", {})


def test_every_argument_of_a_shipped_workflow_is_declared_as_data_or_asked_for():
    declared = {place: safe for name in WORKFLOWS for place, safe in arguments_with_texts(WORKFLOWS[name])}
    assert {place for place, safe in declared.items() if not safe} == ASKED


@pytest.mark.parametrize(
    ("args", "asked"),
    [
        ({"name": "world", "args": {"world": "evil.py:Evil"}}, "world: evil.py:Evil"),
        ({"name": "world", "args": {"world": "pettingzoo/evil:make"}}, "world: pettingzoo/evil:make"),
        ({"name": "world", "args": {"world": "pettingzoo/a", "options": {"describe": "evil:f"}}}, "options: evil:f"),
        ({"name": "coder_tester", "args": {"execution": {"packages": ["evil"]}}}, "execution.packages: evil"),
        ({"name": "coder_tester", "args": {"execution": {"executor": "evil:make"}}}, "execution.executor: evil:make"),
        ({"name": "rated", "args": {"of": "world", "settings": {"world": "evil.py:E"}}}, "settings.world: evil.py:E"),
        ({"name": "search_team", "args": {"retriever": "http://evil/r"}}, "retriever: http://evil/r"),
        ({"name": "unknown", "args": {"anything": ["evil"]}}, "anything: evil"),
        ({"name": "program", "args": {"function": "team.py:team"}}, "function: team.py:team"),
        ({"name": "program", "args": {"command": ["sh", "-c", "x"]}}, "command: sh -c x"),
        ({"name": "solver_verifier", "args": {"score": "math", "max_rounds": 3, "form": "box"}}, None),
        ({"name": "world", "args": {"world": "open_spiel/kuhn_poker(players=3)", "options": {"seed": 3}}}, None),
        ({"name": "coder_tester", "args": {"execution": {"executor": "contained", "cpu_s": 1.0}}}, None),
    ],
)
def test_what_an_argument_would_load_or_send_is_asked_for(args, asked):
    assert list(asks(team(workflow=args))) == ([f"workflow.args.{asked}"] if asked else [])


REMOTE = {"base_url": "http://evil/v1", "model": "m", "api_key_env": "SECRET"}


@pytest.mark.parametrize(
    ("settings", "asked"),
    [
        ({"plugins": ["plugin.py"]}, ["plugins[0]: plugin.py"]),
        ({"plugins": ["verl_mas.evil.py"]}, ["plugins[0]: verl_mas.evil.py"]),
        ({"plugins": ["verl_mas./../evil"]}, ["plugins[0]: verl_mas./../evil"]),
        ({"plugins": ["verl_mas.workflows.single"]}, []),
        ({"workflow": {"name": "single", "path": "team.py"}}, ["workflow.path: team.py"]),
        ({"tools": {"function_tool_path": "tools.py"}}, ["tools.function_tool_path: tools.py"]),
        ({"mcp": {"x": {"url": "http://host:3/mcp"}}}, ["mcp.x.url: http://host:3/mcp"]),
        (
            {"mcp": {"x": {"command": ["touch", "x"], "pass_env": ["SECRET"]}}},
            ["mcp.x.command: touch x", "mcp.x.pass_env: SECRET"],
        ),
        (
            {"verl": {"reward.custom_reward_function.path": "f.py", "data.custom_cls.name": "x"}},
            ["verl.reward.custom_reward_function.path: f.py", "verl.data.custom_cls.name: x"],
        ),
        (
            {"policies": {"main": {"remote": REMOTE}}},
            ["policies.main.remote.base_url: http://evil/v1", "policies.main.remote.api_key_env: SECRET"],
        ),
    ],
)
def test_code_files_and_addresses_of_a_team_are_asked_for(settings, asked):
    assert list(asks(team(**settings))) == asked
