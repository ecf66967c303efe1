"""Values in the group files agree with the types and defaults of the dataclasses."""

from __future__ import annotations

from dataclasses import asdict

import pytest
import yaml
from omegaconf import OmegaConf

from verl_mas.config import load
from verl_mas.config.describe import settings
from verl_mas.config.hydra import group_files
from verl_mas.config.schema import MasConfig, PolicySpec, WorkflowSpec
from verl_mas.config.values import load_dataclass
from verl_mas.workflow.base import resolve
from verl_mas.workflow.members import members_of

# The agents of a program, of an environment of verifiers and of a world come from an argument.
GIVEN = ("team", "program", "verifiers", "world")
TEAMS = [file for name, file in group_files("mas").items() if name not in GIVEN and "/" not in name]


def test_every_setting_of_the_schema_can_be_overridden_without_a_plus(make):
    written = make("single").mas
    for setting in settings(MasConfig, "mas"):
        path = setting.path.removeprefix("mas.")
        if "<name>" not in path:
            assert OmegaConf.select(written, path, default="missing") != "missing", setting


def test_the_yaml_has_the_defaults_of_the_schema(make):
    team, default = load(make("single").mas), load({"agents": {"solver": {}}})
    team.agents = default.agents = {}
    assert team == default


@pytest.mark.parametrize("file", TEAMS, ids=lambda file: file.stem)
def test_a_teams_yaml_names_the_agents_of_its_workflow(file):
    """They are written out so that `mas.agents.<agent>.policy=...` needs no plus."""
    written = yaml.safe_load(file.read_text())["mas"]
    assert written["workflow"]["name"] == file.stem
    members = members_of(resolve(WorkflowSpec(file.stem)).agents, {}, {"main": PolicySpec()})
    roles = list(dict.fromkeys(member.role for member in members.values()))
    assert written["agents"] == {role: {"policy": "main"} for role in roles}


def test_the_yaml_has_no_setting_that_the_schema_lacks_and_every_default_loads_again(make):
    known = {setting.path for setting in settings(MasConfig, "mas")}
    assert {f"mas.{path}" for path in _paths(OmegaConf.to_container(make("team").mas))} <= known
    assert load_dataclass(MasConfig, asdict(MasConfig()), "mas") == MasConfig()
    assert asdict(load(asdict(load(None)))) == asdict(load(None))


def _paths(tree, start=""):
    for key, value in tree.items():
        yield start + key
        if isinstance(value, dict):
            yield from _paths(value, f"{start}{key}.")
