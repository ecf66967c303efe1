"""`verl-mas plan`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from rich.console import Console

from verl_mas import cli
from verl_mas.checks.run import plan_command
from verl_mas.cli._plan import memory, policies
from verl_mas.cli.plan import main
from verl_mas.planning.hardware import parse_gpus

SEPARATE = ["+recipe=math/separate", "actor_rollout_ref.rollout.name=vllm"]
SEPARATE += ["actor_rollout_ref.rollout.gpu_memory_utilization=0.3"]


@pytest.fixture(autouse=True)
def nothing_here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def test_every_phase_of_every_policy_is_shown_and_the_verdict_is_last(capsys):
    assert main([*SEPARATE, "--gpus", "4x80", "trainer.max_actor_ckpt_to_keep=2"]) == 0
    output = capsys.readouterr().out
    for column in ("engine start", "weight sync", "rollout", "log-probs", "update", "KV tokens", "requests", "disk"):
        assert column in output
    assert output.count("Qwen/Qwen3-4B, 4.02 B") == 2
    assert "not measured" in output and "2 are kept: 180 GiB" in output and "256 per step" in output
    assert output.rstrip().splitlines()[-1] == "fits: at most 49.5 of 72.9 GiB per GPU"


def test_a_run_that_does_not_fit_is_shown_with_what_would_and_exits_with_1(capsys):
    assert main([*SEPARATE, "--gpus=4x24"]) == 1
    output = capsys.readouterr().out
    assert "fix:" in output and output.rstrip().splitlines()[-1] == "does not fit"


def test_the_example_of_the_page_is_what_is_printed(capsys):
    page = (Path(__file__).parents[2] / "docs/plan.md").read_text()
    command, _, rest = page.partition("    verl-mas plan ")[2].partition("\n")
    assert main(command.split()) == 0
    printed = [line.rstrip() for line in capsys.readouterr().out.strip().splitlines()]
    assert rest.split("```")[1].strip().splitlines() == printed


def test_what_does_not_fit_on_some_of_the_gpus_is_put_on_all_of_them_as_printed(capsys):
    large = [
        *SEPARATE,
        "actor_rollout_ref.model.path=Qwen/Qwen3-14B",
        "actor_rollout_ref.rollout.gpu_memory_utilization=0.42",
        "--gpus",
        "8x80",
    ]
    assert main(large) == 1
    shown = capsys.readouterr().out
    assert "GPUs: 4 of 8," in shown
    fix = shown.partition("fix:  set ")[2].split(";")[0].split()[0]
    assert fix == "trainer.n_gpus_per_node=8" and main([*large, fix]) == 0
    assert "GPUs: 8 of 8\n" in capsys.readouterr().out


def test_json_is_one_object(capsys):
    assert main(["--json", *SEPARATE, "--gpus", "4x80"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["fits"] is True and found["errors"] == []
    assert set(found["policies"]) == {"solver", "verifier"}
    assert found["policies"]["solver"]["gpu"]["update"] == pytest.approx(43.3, abs=0.1)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (SEPARATE, "add --gpus 8x80"),
        ([*SEPARATE, "--gpus", "eight"], "--gpus eight"),
        ([*SEPARATE, "--gpus", "8x80", "--gpus=4x80"], "--gpus twice"),
        ([*SEPARATE, "--gpus", "8x80", "trainer.nonsense=1"], "trainer.nonsense"),
        ([*SEPARATE, "--gpus", "8x80", "mas.policies.solver.pool=other"], "other"),
    ],
)
def test_what_cannot_be_planned_is_refused_without_a_traceback(capsys, arguments, says):
    assert cli.main(["plan", *arguments]) == 1
    shown = capsys.readouterr()
    assert says in shown.out + shown.err


def test_json_of_a_run_that_cannot_be_planned_has_its_errors(capsys):
    assert main(["--json", *SEPARATE, "--gpus", "4x80", "trainer.nonsense=1"]) == 1
    found = json.loads(capsys.readouterr().out)
    assert found["verdict"] == "refused: 1 error" and found["errors"][0]["value"] == "trainer.nonsense=1"


def test_a_team_of_endpoints_takes_no_gpu(capsys):
    remote = "++mas.policies={main: {trainable: false, remote: {base_url: 'http://x/v1', model: m}}}"
    team = ["+mas=solver_verifier", "actor_rollout_ref.rollout.name=vllm", "algorithm.adv_estimator=agent_grpo"]
    assert main([*team, remote, "trainer.val_only=true", "--gpus", "1x80"]) == 0
    assert capsys.readouterr().out.rstrip().endswith("fits: no policy is served here")


def test_tables_fit_into_100_columns():
    plan, _ = plan_command([*SEPARATE, "trainer.nnodes=2", "trainer.n_gpus_per_node=8"], parse_gpus("2x8x80"))
    for table in (memory(plan), policies(plan)):
        assert Console(width=1000).measure(table).maximum <= 100


def test_gpus_without_a_value_are_a_wrong_command_line(capsys):
    assert cli.main(["plan", *SEPARATE, "--gpus"]) == 2
    assert "--gpus: expected one argument" in capsys.readouterr().err


def test_a_base_is_planned_once_with_its_adapters_below_it(capsys):
    assert main(["+recipe=math/adapters", "--gpus", "4x80"]) == 0
    output = capsys.readouterr().out
    assert output.count("Qwen/Qwen3-4B, 4.02 B") == 1
    assert output.count("rank 32 on main, 66.1 M") == 2
