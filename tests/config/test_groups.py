"""The YAML holds the values, the dataclasses the types: the two must tell the same story."""

from __future__ import annotations

from dataclasses import asdict, fields
from pathlib import Path

import pytest
import yaml
from omegaconf import OmegaConf

import verl_mas.config
from verl_mas.config import load
from verl_mas.config.schema import MasConfig, PolicySpec, WorkflowSpec
from verl_mas.workflow.base import resolve
from verl_mas.workflow.members import members_of

FOLDER = Path(verl_mas.config.__file__).parent / "hydra" / "mas"
TEAMS = sorted(set(FOLDER.glob("*.yaml")) - {FOLDER / "team.yaml"})


def test_every_setting_of_the_schema_can_be_overridden_without_a_plus(make):
    written = OmegaConf.to_container(make("single").mas)
    for section in fields(MasConfig):
        assert section.name in written
        default = asdict(MasConfig())[section.name]
        if isinstance(default, dict):
            assert set(written[section.name] or {}) >= set(default)


def test_the_yaml_says_what_the_schema_says(make):
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
