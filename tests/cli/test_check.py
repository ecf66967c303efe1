from __future__ import annotations

import json
import sys

from data_rows import PUZZLES, QUESTIONS

from verl_mas import cli
from verl_mas.cli.check import main

TEAM = [
    *("+mas=solver_verifier", "+platform=cpu", "algorithm.adv_estimator=agent_grpo", "data.train_batch_size=8"),
    *("actor_rollout_ref.model.path=owner/tiny", "actor_rollout_ref.rollout.n=4"),
    *("actor_rollout_ref.actor.ppo_mini_batch_size=8", "mas.policies={a:{},b:{trainable:false}}"),
    *("mas.agents.solver.policy=a", "mas.agents.verifier.policy=b"),
    *QUESTIONS,
]


def test_the_team_is_shown_as_a_tree_with_a_verdict_in_lines_that_are_not_wrapped(capsys):
    assert main(TEAM) == 0
    output = capsys.readouterr().out
    for part in (
        "solver acts on a",
        "verifier acts on b (its rows are left out of the loss)",
        "a: trained, owner/tiny, served by transformers on pool shared, learning rate 1e-06, 1 optimiser step per "
        "training step",
        "b: frozen, owner/tiny",
        "shared: 1 worker process, engines awake together (on the CPU engines share the memory of the host): a, b",
        "sessions: 8 tasks x 4 per task = 32",
        "rows: 32 for each act",
    ):
        assert part in output
    assert "where it branches" not in output
    assert output.rstrip().splitlines()[-1].startswith("accepted")


def test_the_rows_of_a_branching_team_are_multiplied_by_its_candidates(capsys):
    branching = ["+mas=planner_executor", *TEAM[1:6], TEAM[6], "mas.branch.k=8", "algorithm.adv_estimator=at_grpo"]
    assert main([*branching, *PUZZLES]) == 0
    assert "32 x 8 candidates = 256" in capsys.readouterr().out


def test_gpus_are_shown_where_there_are_some(capsys):
    pools = ["trainer.device=cuda", "trainer.n_gpus_per_node=8", "trainer.nnodes=2"]
    assert main([*TEAM, *pools, "++ray_kwargs.ray_init.num_gpus=16", "++mas.pools.shared.serving=phases"]) == 0
    served = "engines awake one policy at a time (mas.pools.shared.serving)"
    assert f"shared: 16 GPUs on 2 nodes, {served}: a, b" in capsys.readouterr().out


def test_an_executor_that_nobody_knows_is_refused_before_ray(capsys):
    executor = "mas.workflow.args.execution.executor=docker"
    team = ["mas.policies=null", "mas.agents=null", "mas.workflow.name=reasoner_tool_user", f"++{executor}"]
    assert main([*TEAM, *team]) == 1
    assert executor in capsys.readouterr().out


def test_shipped_recipes_and_the_users_teams_are_found_together(capsys, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    team = tmp_path / "my (teams)" / "mas" / "mine.yaml"
    team.parent.mkdir(parents=True)
    team.write_text("# @package _global_\ndefaults: [solver_verifier, _self_]\nmas: {updates_per_step: 3}\n")
    both = ["--config-dir", "my (teams)", "+platform=cpu", "+recipe=plan_path/laptop"]
    changed = [
        "mas.workflow.args=null",
        "actor_rollout_ref.rollout.n=4",
        "algorithm.adv_estimator=agent_grpo",
        "actor_rollout_ref.model.path=owner/tiny",
        *(
            "reward.custom_reward_function.path=pkg://verl_mas.testing.letters",
            "reward.custom_reward_function.name=score",
        ),
    ]
    main([*both, "+mas=mine", *changed, *PUZZLES])
    assert "3 optimiser steps per training step" in " ".join(capsys.readouterr().out.split())


def test_the_mode_of_a_run_and_what_corrects_stale_rows_are_shown(capsys):
    assert main([*TEAM, "+mas/mode=colocate_async"]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert "mode: mas_colocate_async, training and engines take turns, sessions continue; W=1 T=2 wait" in shown
    assert "rollout correction token 2.0" in shown


def test_all_errors_are_shown_with_their_number(capsys):
    assert cli.main(["check", *TEAM, "mas.agents.solver.policy=c", "trainer.use_v1=false"]) == 1
    output = capsys.readouterr().out
    assert "trainer.use_v1=False" in output and "agent solver acts on policy c" in output
    assert output.rstrip().splitlines()[-1].startswith("refused: 3 errors")


def test_a_module_in_the_current_folder_is_found_as_main_ppo_finds_it(capsys, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [path for path in sys.path if path])
    (tmp_path / "our_team_here.py").write_text(
        "from verl_mas.workflow import Workflow\n\n\nclass Mine(Workflow):\n    agents = ('solver',)\n\n"
        "    async def run(self, task, team):\n        await team.solver.act(task.messages)\n"
    )
    mine = ["+mas=team", "mas.workflow.name=Mine", "mas.workflow.path=our_team_here", *TEAM[1:7], *QUESTIONS]
    assert cli.main(["check", *mine]) == 0
    assert "solver acts on main" in capsys.readouterr().out


def test_the_schema_lists_every_setting_with_what_it_takes_its_default_and_its_meaning(capsys):
    assert main(["--schema"]) == 0
    output = capsys.readouterr().out
    for line in (
        "mas.branch.k: a whole number, at least 1 (default 1)\n    Candidates per prompt.",
        "mas.agents.<name>.sampling.top_p: a finite number, above 0, at most 1\n    Sample from",
        "mas.policies.<name>.remote.base_url: text, not empty (default none: it must be set)\n",
        "mas.advantage.deviation: one of sample, population (default sample)\n    Divide by N-1",
        "engine_kwargs.transformers.threads: a whole number, at least 1 (default 1)\n    Torch threads",
    ):
        assert line in output
    assert "mas.workflow.args." not in output


def test_the_schema_is_json_on_request(capsys):
    assert main(["--schema", "--json"]) == 0
    found = {one["path"]: one for one in json.loads(capsys.readouterr().out)["settings"]}
    assert found["mas.branch.k"].keys() == {"path", "takes", "default", "meaning"}


def test_the_schema_lists_the_arguments_of_the_workflow_that_is_named(capsys):
    assert main(["--schema", "+mas=solver_verifier"]) == 0
    output = capsys.readouterr().out
    assert "mas.workflow.args.max_rounds: a whole number, at least 1 (default 2)\n    Proposals" in output


def test_a_run_without_arguments_is_not_checked(capsys):
    assert cli.main(["check"]) == 2
    assert "verl-mas check: missing: ARGUMENTS" in capsys.readouterr().err


def test_the_tree_shows_settings_rewards_lengths_the_folder_and_the_machine(capsys, letters, tmp_path):
    changed = ["++mas.agents.solver.sampling.temperature=0.5", "mas.reward.preset=dr_mas"]
    changed += ["++mas.policies.b.overrides.rollout.max_model_len=1024"]
    shown = [f"actor_rollout_ref.model.path={letters}/model", f"trainer.default_local_dir={tmp_path}/run"]
    assert main([*TEAM, *changed, *shown]) == 0
    output = capsys.readouterr().out
    for part in (
        "solver acts on a, sampling={'temperature': 0.5}",
        "rewards: preset dr_mas, 1 x team + 0 x act, format penalty on act",
        "prompts of 512 tokens, responses of 512",
        "a: a context of 4096 tokens",
        "b: a context of 1024 tokens",
        f"checkpoints: {tmp_path}/run",
        "starts from the models",
        f"python: {sys.version.split()[0]}",
    ):
        assert part in output


def test_a_run_without_a_team_is_shown_too(capsys):
    assert (
        main(["+platform=cpu", "actor_rollout_ref.model.path=owner/tiny", "data.train_batch_size=1", *QUESTIONS]) == 0
    )
    output = capsys.readouterr().out
    assert "no team: mas is not set, so verl's trainer `sync` runs" in output
    assert "main: trained, owner/tiny" in output and "advantages: gae" in output


def test_json_has_the_run_the_machine_and_the_verdict(capsys):
    assert main(["--json", *TEAM]) == 0
    report = json.loads(capsys.readouterr().out)
    assert list(report) == ["verdict", "accepted", "errors", "warnings", "run", "machine"]
    assert report["verdict"] == "accepted with 1 warning" and report["accepted"] is True
    assert [sorted(warning) for warning in report["warnings"]] == [["fix", "reason", "value"]]
    assert report["run"]["policies"]["a"]["learning_rate"] == 1e-6
    assert report["run"]["agents"]["verifier"] == {"policy": "b", "trained": False, "settings": {}}
    assert {"what": "python", "seen": sys.version.split()[0], "ok": True, "fix": ""} in report["machine"]


def test_json_has_the_errors_of_a_refused_run(capsys):
    assert main(["--json", *TEAM, "mas.agents.solver.policy=c"]) == 1
    report = json.loads(capsys.readouterr().out)
    assert report["verdict"].startswith("refused: 2 errors") and report["run"] is None
    assert report["errors"][0] == {
        "value": "agent solver acts on policy c",
        "rule": "an agent acts on one of mas.policies",
        "fix": "set ++mas.agents.solver.policy; known: a, b",
    }


def test_adapters_are_shown_with_their_base(capsys):
    two = "++mas.policies={a:{adapter_of:main},b:{adapter_of:main,overrides:{model:{lora_rank:8}}}}"
    assert main([*TEAM, "mas.policies=null", two, "++actor_rollout_ref.model.lora_rank=4"]) == 0
    output = capsys.readouterr().out
    for part in (
        "a: trained, an adapter of rank 4 (alpha 16) on main, learning rate 1e-06",
        "b: trained, an adapter of rank 8 (alpha 16) on main",
        "main: frozen, the base of a, b, owner/tiny, served by transformers on pool shared",
        "shared: 1 worker process: main",
    ):
        assert part in output
