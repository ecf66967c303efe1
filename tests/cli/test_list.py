"""`verl-mas list`: everything that a configuration can name has a line about it."""

import json

from commands import output_of

from verl_mas.cli.list import KINDS
from verl_mas.environment.grading.math import math_verify
from verl_mas.environment.worlds.hubs.open_spiel import pyspiel
from verl_mas.environment.worlds.hubs.openenv import websockets
from verl_mas.environment.worlds.hubs.pettingzoo import zoo
from verl_mas.environment.worlds.hubs.reasoning_gym import gym
from verl_mas.environment.worlds.hubs.textarena import textarena

OF_TESTS = ("worst", "my_service", "test_registered")  # Other tests register names of their own in this process


def test_every_name_of_a_kind_has_a_line():
    names = {(kind, name): about for kind in KINDS for name, about in KINDS[kind][1]().items() if name not in OF_TESTS}
    assert {kind for kind, _ in names} == {*KINDS}
    assert [key for key, about in names.items() if len(about.split()) < (1 if "metrics" in key else 3)] == []


def test_teams_and_recipes_are_those_of_hydra_and_without_a_kind_all_are_counted(capsys):
    assert {"solver_verifier", "debate"} <= set(json.loads(output_of(capsys, "list", "teams", "--json"))["names"])
    shown = output_of(capsys, "list", "recipes")
    assert "math/shared" in shown and "math/common" not in shown and "used as +recipe=NAME" in shown
    assert set(json.loads(output_of(capsys, "list", "--json"))["kinds"]) == set(KINDS)
    assert "did you mean 'estimators'" in output_of(capsys, "list", "estimator", code=1)


def test_a_list_is_one_line_per_name_in_a_pipe_and_fits_the_columns_that_are_set(capsys, monkeypatch):
    monkeypatch.delenv("COLUMNS", raising=False)
    names = len(KINDS["teams"][1]())
    assert len(output_of(capsys, "list", "teams").splitlines()) == names + 2
    monkeypatch.setenv("COLUMNS", "40")
    assert max(map(len, output_of(capsys, "list", "teams").splitlines())) <= 40


def test_an_entry_whose_extra_is_missing_names_the_command_that_installs_it(capsys, monkeypatch):
    """`scripts/try_installs.py` lists the names in an environment without extras."""
    monkeypatch.setattr("verl_mas.config.registry.find_spec", lambda package: None)
    shown = " ".join("".join(output_of(capsys, "list", kind) for kind in ("worlds", "graders", "data")).split())
    for extra in (pyspiel, textarena, zoo, websockets, gym, math_verify):
        install = f"pip install 'verl-mas[{extra.extra_name}]'"
        assert f"Needs the extra {extra.extra_name}: {install}" in shown
