from __future__ import annotations

import pytest

from verl_mas.cli.check import main
from verl_mas.errors import ConfigError

TEAM = [
    *("+mas=solver_verifier", "+platform=cpu", "algorithm.adv_estimator=agent_grpo", "data.train_batch_size=8"),
    *("actor_rollout_ref.model.path=owner/tiny", "actor_rollout_ref.rollout.n=4"),
    *("actor_rollout_ref.actor.ppo_mini_batch_size=8", "mas.policies={a:{},b:{trainable:false}}"),
    *("mas.agents.solver.policy=a", "mas.agents.verifier.policy=b"),
]


def test_the_team_is_shown_as_a_tree(capsys):
    assert main(TEAM) == 0
    shown = " ".join(capsys.readouterr().out.split())
    for part in (
        "solver -> a",
        "verifier -> b, left out of the loss",
        "a: trained, owner/tiny, served by transformers",
        "b: frozen",
        "shared: 1 x 1 GPUs, together: a, b",
        "8 tasks x 4 sessions = 32 a step",
    ):
        assert part in shown


def test_what_cannot_run_is_refused():
    with pytest.raises(ConfigError, match="acts on policy c"):
        main([*TEAM, "mas.agents.solver.policy=c"])


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        (["actor_rollout_ref.model.path=/nowhere"], "/nowhere"),
        (["actor_rollout_ref.rollout.name=nonsense"], r"rollout\.name=nonsense"),
        (["mas.policies=null", "mas.agents=null", "mas.workflow.name=reasoner_tool_user"], "executor"),
        (["algorithm.norm_adv_by_std_in_grpo=false"], r"mas\.advantage\.scale=none"),
    ],
)
def test_what_a_run_would_refuse_before_ray_is_refused(changed, said):
    with pytest.raises(ConfigError, match=said):
        main([*TEAM, *changed])


def test_recipes_and_teams_of_ones_own_are_found_together(capsys, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    team = tmp_path / "my (teams)" / "mas" / "mine.yaml"
    team.parent.mkdir(parents=True)
    team.write_text("# @package _global_\ndefaults: [solver_verifier, _self_]\nmas: {updates_per_step: 3}\n")
    both = ["--config-dir", "my (teams)", "+platform=cpu", "+recipe=plan_path/laptop"]
    changed = [
        "mas.workflow.args=null",
        "algorithm.adv_estimator=agent_grpo",
        "actor_rollout_ref.model.path=owner/tiny",
    ]
    main([*both, "+mas=mine", *changed])
    assert "3 optimiser steps a step" in " ".join(capsys.readouterr().out.split())


def test_a_config_dir_that_is_not_there_is_refused():
    with pytest.raises(ConfigError, match="nowhere"):
        main(["--config-dir", "nowhere", *TEAM])


def test_recipes_are_found_from_any_folder(capsys, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    one = ["+platform=cpu", "+recipe=math/shared", "actor_rollout_ref.actor.strategy=fsdp2"]
    assert main([*one, "++ray_kwargs.ray_init.num_gpus=4", "++ray_kwargs.ray_init.num_cpus=64"]) == 0
    assert "Qwen/Qwen3-4B" in capsys.readouterr().out


def test_an_override_that_does_not_compose_is_refused_with_the_way_out():
    with pytest.raises(ConfigError, match=r"mas\.agents\.reviewer"):
        main([*TEAM, "mas.agents.reviewer.policy=a"])


def test_the_schema_lists_every_setting_with_what_it_takes_its_default_and_its_meaning(capsys):
    assert main(["--schema"]) == 0
    shown = capsys.readouterr().out
    for line in (
        "mas.branch.k: a whole number, at least 1 (default 1)\n    Candidates per prompt.",
        "mas.agents.<name>.sampling.top_p: a finite number, above 0, at most 1\n    Sample from",
        "mas.policies.<name>.remote.base_url: text, not empty (default none, it must be set)\n",
        "mas.advantage.deviation: one of sample, population (default sample)\n    Divide by N-1",
        "engine_kwargs.transformers.threads: a whole number, at least 1 (default 1)\n    Torch threads",
    ):
        assert line in shown
    assert "mas.workflow.args." not in shown


def test_the_schema_lists_the_arguments_of_the_workflow_that_is_named(capsys):
    assert main(["--schema", "+mas=solver_verifier"]) == 0
    shown = capsys.readouterr().out
    assert "mas.workflow.args.max_rounds: a whole number, at least 1 (default 2)\n    Proposals" in shown


def test_without_overrides_it_says_how_to_use_it(capsys):
    assert main([]) == 0
    assert capsys.readouterr().out.startswith("usage: verl-mas check")
