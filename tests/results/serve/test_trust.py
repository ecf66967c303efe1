"""Code, files and addresses for which a team of somebody else needs the user's trust."""

import re
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import get_type_hints

import pytest
import yaml

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


@pytest.mark.parametrize(("settings", "asked"), yaml.safe_load((Path(__file__).parent / "asked.yaml").read_text()))
def test_code_files_and_addresses_of_a_team_are_asked_for(settings, asked):
    assert list(asks(team(**settings))) == asked
