import json
import sys
from pathlib import Path

import pytest
import yaml
from commands import output_of
from data_rows import PUZZLES, QUESTIONS

SMALL = [
    *("+platform=cpu", "algorithm.adv_estimator=agent_grpo", "data.train_batch_size=8"),
    *("actor_rollout_ref.model.path=owner/tiny", "actor_rollout_ref.rollout.n=4"),
    "actor_rollout_ref.actor.ppo_mini_batch_size=8",
]
TEAM = ["+mas=solver_verifier", *SMALL, "mas.policies={a:{},b:{trainable:false}}"]
TEAM += ["mas.agents.solver.policy=a", "mas.agents.verifier.policy=b", *QUESTIONS]
TREES = yaml.safe_load((Path(__file__).parent / "trees.yaml").read_text())


@pytest.mark.parametrize("of", TREES)
def test_a_team_is_shown_as_a_tree_with_a_verdict_in_lines_that_are_not_wrapped(capsys, letters, tmp_path, of):
    def filled(texts: list[str]) -> list[str]:
        return [text.replace("LETTERS", str(letters)).replace("HERE", str(tmp_path)) for text in texts]

    output = output_of(capsys, "check", *TEAM, *filled(TREES[of]["changed"]))
    parts = [*filled(TREES[of]["shows"]), f"python: {sys.version.split()[0]}"]
    assert [part for part in parts if part not in output] == [] and "where it branches" not in output
    assert output.rstrip().splitlines()[-1].startswith("accepted")


def test_the_rows_of_a_branching_team_are_multiplied_by_its_candidates(capsys):
    branching = ["+mas=planner_executor", *SMALL, "mas.branch.k=8", "algorithm.adv_estimator=at_grpo"]
    assert "rows where it branches: 32 x 8 candidates = 256" in output_of(capsys, "check", *branching, *PUZZLES)


def test_a_run_without_a_team_is_shown_too(capsys):
    output = output_of(capsys, "check", *SMALL, *QUESTIONS, "algorithm.adv_estimator=gae")
    assert "no team: mas is not set, so verl's trainer `sync` runs" in output
    assert "main: trained, owner/tiny" in output and "advantages: gae" in output


def test_all_errors_are_shown_with_their_number(capsys):
    assert "verl-mas check: missing: ARGUMENTS" in output_of(capsys, "check", code=2)
    output = output_of(capsys, "check", *TEAM, "mas.agents.solver.policy=c", "trainer.use_v1=false", code=1)
    assert "agent solver acts on policy c" in output and "trainer.use_v1=False" in output
    assert output.rstrip().splitlines()[-1].startswith("refused: 3 errors")


def test_shipped_recipes_and_the_users_teams_are_found_together(capsys, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    team = tmp_path / "my (teams)" / "mas" / "mine.yaml"
    team.parent.mkdir(parents=True)
    team.write_text(
        "# @package _global_\ndefaults: [solver_verifier, _self_]\nmas: {agents: {verifier: {trainable: false}}}\n"
    )
    reward = [f"reward.custom_reward_function.{item}" for item in ("path=pkg://verl_mas.testing.letters", "name=score")]
    changed = ["mas.workflow.args=null", *SMALL[1:2], *SMALL[3:5], *reward, *PUZZLES]
    both = ["--config-dir", "my (teams)", "+platform=cpu", "+mas=mine", "+recipe=plan_path/laptop"]
    assert "verifier acts on main (its rows are left out" in output_of(capsys, "check", *both, *changed)


def test_a_module_in_the_current_folder_is_found_as_main_ppo_finds_it(capsys, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [path for path in sys.path if path])
    (tmp_path / "our_team_here.py").write_text(
        "from verl_mas.workflow import Outcome, Workflow\n\n\nclass Mine(Workflow):\n    agents = ('solver',)\n\n"
        "    async def run(self, task, team):\n        return Outcome(await team.solver.act(task.messages))\n"
    )
    mine = ["+mas=team", "mas.workflow.name=Mine", "mas.workflow.path=our_team_here", *SMALL, *QUESTIONS]
    assert "solver acts on main" in output_of(capsys, "check", *mine)


def test_the_schema_lists_every_setting_with_what_it_takes_its_default_and_its_meaning(capsys):
    output = output_of(capsys, "check", "--schema")
    for line in (
        "mas.branch.k: a whole number, at least 1 (default 1)\n    Candidates per prompt.",
        "mas.advantage.deviation: one of sample, population (default sample)\n    Divide by N-1",
        "engine_kwargs.transformers.threads: a whole number, at least 1 (default 1)\n    Torch threads",
    ):
        assert line in output
    assert "mas.workflow.args." not in output
    rounds = "mas.workflow.args.max_rounds: a whole number, at least 1 (default 2)\n    Maximum number of proposals"
    assert rounds in output_of(capsys, "check", "--schema", "+mas=solver_verifier"), "of the workflow that is named"
    listed = json.loads(output_of(capsys, "check", "--schema", "--json"))["settings"]
    assert {*listed[0]} == {"path", "takes", "default", "meaning"}


def test_json_has_the_run_the_machine_the_verdict_and_the_errors(capsys):
    report = json.loads(output_of(capsys, "check", "--json", *TEAM))
    assert list(report) == ["verdict", "accepted", "errors", "warnings", "settled", "run", "machine"]
    assert report["verdict"] == "accepted with 2 warnings" and report["accepted"] is True
    assert [sorted(warning) for warning in report["warnings"]] == [["fix", "reason", "value"]] * 2
    assert report["run"]["policies"]["a"]["learning_rate"] == 1e-6
    assert report["run"]["agents"]["verifier"] == {"policy": "b", "trained": False, "settings": {}}
    assert {"what": "python", "seen": sys.version.split()[0], "ok": True, "fix": ""} in report["machine"]
    report = json.loads(output_of(capsys, "check", "--json", *TEAM, "mas.agents.solver.policy=c", code=1))
    assert report["verdict"].startswith("refused: 2 errors") and report["run"] is None
    fix = "set ++mas.agents.solver.policy; known: a, b"
    rule = "an agent acts on one of mas.policies"
    assert report["errors"][0] == {"value": "agent solver acts on policy c", "rule": rule, "fix": fix}
