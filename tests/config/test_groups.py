"""Group files of teams: files that are made from workflows, and the values in the other files."""

from dataclasses import asdict

import pytest
import yaml

from verl_mas.config import load
from verl_mas.config.compose import compose
from verl_mas.config.hydra import group_files
from verl_mas.config.schema import MasConfig
from verl_mas.workflow.base import Workflow, team_file

# Teams whose file has values of its own, and the agents of its workflow.
TEAMS = ("ensemble", "reasoner_tool_user", "single_tool_user")


def test_every_setting_has_the_default_of_the_schema_and_can_be_overridden_without_a_plus(make):
    team, default = load(make("single").mas), load({"agents": {"solver": {}}})
    assert team == default
    assert make("single").mas.keys() == asdict(MasConfig()).keys()
    assert asdict(load(asdict(load(None)))) == asdict(load(None))


def test_a_workflow_without_a_file_is_a_team_with_its_agents_by_role(make):
    assert make("debate").mas.agents == {"debater": {"policy": "main"}}
    assert "debate" not in group_files("mas")


def test_agents_that_follow_from_an_argument_without_a_default_are_not_listed(monkeypatch):
    class Sized(Workflow):
        size: int

        async def run(self, task, team): ...

    monkeypatch.setattr("verl_mas.workflow.base.find", lambda name, path=None: Sized)
    assert team_file("sized")["mas"] == {"workflow": {"name": "sized"}, "agents": None}


@pytest.mark.parametrize("name", TEAMS)
def test_a_teams_yaml_names_the_agents_of_its_workflow(name):
    written = yaml.safe_load(group_files("mas")[name].read_text())["mas"]
    assert written["agents"] == team_file(name)["mas"]["agents"] and written["workflow"]["name"] == name


def test_another_package_adds_group_files_by_an_entry_point(tmp_path, monkeypatch):
    team = "# @package _global_\ndefaults: [team, _self_]\nmas: {workflow: {name: single}, max_sessions: 7}\n"
    points = "[verl_mas.hydra]\nzoo = zoo_groups\n"
    files = {"zoo_groups/__init__.py": "", "zoo_groups/mas/zoo.yaml": team}
    files |= {"zoo-1.dist-info/METADATA": "Metadata-Version: 2.1\nName: zoo\nVersion: 1\n"}
    for name, text in (files | {"zoo-1.dist-info/entry_points.txt": points}).items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    assert compose(["+mas=zoo"]).mas.max_sessions == 7 and "zoo" in group_files("mas")
