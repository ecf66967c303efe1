"""`verl-mas list` and `verl-mas explain`: everything that a configuration can name has a line about it."""

from __future__ import annotations

import json

import pytest

from verl_mas import cli
from verl_mas.cli._explained import explained
from verl_mas.cli._names import KINDS
from verl_mas.errors import ConfigError


@pytest.mark.parametrize("kind", KINDS)
def test_every_name_of_a_kind_has_a_line(kind):
    _, names = KINDS[kind]
    # Other tests register names of their own in this process.
    found = {name: about for name, about in names().items() if name not in ("worst", "my_service", "test_registered")}
    assert (
        found and [name for name, about in found.items() if len(about.split()) < (1 if kind == "metrics" else 3)] == []
    )


def test_teams_and_recipes_are_those_of_hydra(capsys):
    assert cli.main(["list", "teams", "--json"]) == 0
    assert {"solver_verifier", "debate"} <= set(json.loads(capsys.readouterr().out)["names"])
    assert cli.main(["list", "recipes"]) == 0
    shown = capsys.readouterr().out
    assert "math/shared" in shown and "math/common" not in shown and "used as +recipe=NAME" in shown


def test_an_unknown_kind_names_the_nearest(capsys):
    assert cli.main(["list", "estimator"]) == 1
    assert "did you mean 'estimators'" in capsys.readouterr().err


def test_without_a_kind_all_are_counted(capsys):
    assert cli.main(["list", "--json"]) == 0
    assert set(json.loads(capsys.readouterr().out)["kinds"]) == set(KINDS)


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("mas.branch.k", ["a setting of verl-mas", "takes:   a whole number", "set by:  mas.branch.k=VALUE"]),
        ("branch.k", ["mas.branch.k"]),
        ("+mas.branch.k=4", ["mas.branch.k"]),
        ("mas.agents.solver.policy", ["mas.agents.<name>.policy", "default: main", "++mas.agents.<name>.policy"]),
        ("mas.branch", ["settings:", "mas.branch.commit"]),
        ("mas.workflow.args.max_rounds", ["an argument of the workflow solver_verifier"]),
        (
            "actor_rollout_ref.rollout.temperature",
            ["a setting of verl", "default: 1.0", "++mas.policies.<name>.overrides.rollout.temperature"],
        ),
        ("trainer.device", ["a setting of verl", "set by:  trainer.device=VALUE"]),
        ("agent_grpo", ["estimator", "algorithm.adv_estimator=agent_grpo", "A = (R - mu_k)"]),
        ("algorithm.adv_estimator=agent_grpo", ["a setting of verl", "estimator", "Dr. MAS"]),
        ("agent/solver/reward/score", ["metric", "mean score of the agent's rows"]),
        ("math/shared", ["recipe", "python -m verl.trainer.main_ppo +recipe=math/shared"]),
        ("solver_verifier", ["team", "workflow"]),
    ],
)
def test_a_name_is_explained(name, says):
    text = "\n".join(map(str, explained(name)))
    assert [words for words in says if words not in text] == []


@pytest.mark.parametrize(
    ("name", "fix"),
    [
        ("mas.brnach.k", "mas.branch.k"),
        ("agent_grop", "agent_grpo"),
        ("trainer.ppo_mini_batch_size", "actor_rollout_ref.actor.ppo_mini_batch_size"),
        ("xyzzy", "verl-mas list"),
    ],
)
def test_an_unknown_name_gets_a_suggestion(name, fix):
    with pytest.raises(ConfigError) as refused:
        explained(name)
    assert fix in refused.value.fix


def test_json_leaves_out_what_is_empty(capsys):
    assert cli.main(["explain", "mas.branch.k", "--json"]) == 0
    [entry] = json.loads(capsys.readouterr().out)["found"]
    assert entry["default"] == "1" and "settings" not in entry
