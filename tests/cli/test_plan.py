"""`verl-mas plan`."""

import json
import re
from pathlib import Path

import pytest
from commands import output_of

from verl_mas.cli._plan import PUBLISHED

SEPARATE = ["+recipe=math/separate", "actor_rollout_ref.rollout.name=vllm"]
SEPARATE += ["actor_rollout_ref.rollout.gpu_memory_utilization=0.3"]


@pytest.fixture(autouse=True)
def nothing_here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "80")


@pytest.fixture
def plan(capsys):
    return lambda *words, code=0: output_of(capsys, "plan", *words, code=code)


def test_the_example_of_the_page_is_what_is_printed(plan):
    page = (Path(__file__).parents[2] / "docs/train/plan.md").read_text()
    command, _, rest = page.partition("    verl-mas plan ")[2].partition("\n")
    printed = [line.rstrip() for line in plan(*command.split()).strip().splitlines()]
    assert rest.split("```")[1].strip().splitlines() == printed


def test_a_run_that_does_not_fit_on_some_gpus_fits_on_all_by_the_printed_fix(plan):
    large = ["actor_rollout_ref.model.path=Qwen/Qwen3-14B", "actor_rollout_ref.rollout.gpu_memory_utilization=0.42"]
    large += ["actor_rollout_ref.model.use_fused_kernels=False"]
    shown = plan(*SEPARATE, *large, "--gpus", "8x80")
    assert "GPUs: 4 of 8 are used;" in shown and "tight: " in shown and "it fits only if " in shown
    [fix] = re.findall(r"fix: +set (\S+)", shown)
    assert fix == "trainer.n_gpus_per_node=8"
    assert "GPUs: 8 of 8 are used\n" in plan(*SEPARATE, *large, "--gpus", "8x80", fix)


def test_several_machines_are_a_table_and_each_run_uses_all_of_its_machine(plan):
    words = ["+recipe=math/shared", "--gpus", "1x24,4x80,2x8x80", "--assume", "steps=1000"]
    page = (Path(__file__).parents[2] / "docs/train/plan.md").read_text()
    table = page.partition("--gpus 1x24,4x80,2x8x80")[2].split("```")[1].strip("\n").splitlines()
    printed = [line.rstrip() for line in plan(*words).splitlines()]
    assert printed[1:5] == table and printed[5].startswith("1x24: pool shared: update of main takes")
    machines = json.loads(plan("--json", *words))["machines"]
    assert [one["fits"] for one in machines.values()] == [False, True, True]
    assert [one["gpus"] for one in machines.values()] == [1, 4, 16]
    assert "1x24" in plan(*words[:2], "1x24,1x40", code=1)


def test_the_factor_to_published_hours_is_that_of_the_page():
    page = (Path(__file__).parents[2] / "docs/train/plan.md").read_text()
    factors = re.findall(r"\d h \| ([\d.]+) \|$", page, re.MULTILINE)
    assert f"{min(factors)} to {max(factors)}" == PUBLISHED


def test_hours_follow_the_rows_and_not_the_limit_of_prompts(plan, tmp_path):
    row = {"data_source": "x", "prompt": [{"role": "user", "content": "a" * 400}]}
    (tmp_path / "rows.jsonl").write_text(f"{json.dumps(row)}\n" * 256)
    words = ["+recipe=math/shared", "--gpus", "4x80", "--json", "data.train_files=rows.jsonl"]
    found = [json.loads(plan(*words, f"data.max_prompt_length={limit}"))["time"] for limit in (8192, 4096)]
    assert found[0]["hours"] == found[1]["hours"] and found[0]["step"]["task"] == 100
    assert "4 characters per token" in found[0]["step"]["sources"]["prompt"]
    assert found[0]["limit"] > found[0]["seconds"]


def test_json_is_one_object(plan):
    found = json.loads(plan("--json", *SEPARATE, "--gpus", "4x80"))
    assert found["fits"] is True and found["errors"] == []
    assert set(found["policies"]) == {"solver", "verifier"}
    assert found["policies"]["solver"]["gpu"]["update"] == pytest.approx(28.2, abs=0.1)
    assert found["time"]["hours"] is None and found["time"]["step"]["response"] == 2048
    found = json.loads(plan("--json", *SEPARATE, "--gpus", "4x80", "trainer.nonsense=1", code=1))
    assert found["verdict"] == "refused: 1 error" and found["errors"][0]["value"] == "trainer.nonsense=1"


@pytest.mark.parametrize(
    ("arguments", "code", "says"),
    [
        ("", 1, "add --gpus 8x80"),
        ("--gpus eight", 1, "--gpus eight"),
        ("--gpus 8x80 --assume respone=9", 1, "did you mean 'response'"),
        ("--gpus 8x80 --assume mfu=2", 1, "between 0 and 1"),
        ("--gpus 8x80 --assume response=99999", 1, "--assume response=99999 with data.max_response_length="),
        ("--gpus 8x80 trainer.nonsense=1", 1, "trainer.nonsense"),
        ("--gpus 8x80 mas.policies.solver.pool=other", 1, "other"),
    ],
)
def test_arguments_that_cannot_be_planned_are_refused_without_a_traceback(plan, arguments, code, says):
    assert says in plan(*SEPARATE, *arguments.split(), code=code)


def test_a_team_of_endpoints_takes_no_gpu(plan):
    remote = "++mas.policies={main: {trainable: false, remote: {base_url: 'http://x/v1', model: m}}}"
    team = ["+mas=solver_verifier", "actor_rollout_ref.rollout.name=vllm", "algorithm.adv_estimator=agent_grpo"]
    output = plan(*team, remote, "trainer.val_only=true", "--gpus", "1x80")
    assert output.rstrip().endswith("fits: no policy is served here")


def test_lines_are_of_80_columns_and_no_setting_is_broken(plan):
    masked = "++actor_rollout_ref.model.override_config.attn_implementation=sdpa"
    output = plan(*SEPARATE, masked, "actor_rollout_ref.actor.ppo_max_token_len_per_gpu=131072", "--gpus=4x80", code=1)
    assert max(map(len, output.splitlines())) <= 90
    assert "++mas.policies.solver.overrides.actor.ppo_max_token_len_per_gpu=65536" in output.split()
    assert output.rstrip().splitlines()[-1] == "does not fit"


def test_assumptions_change_the_time_and_are_shown(plan):
    shown = plan(*SEPARATE, "--gpus=4x80", "--assume", "steps=100", "--assume", "response=300", "--assume", "acts=3")
    shown = " ".join(shown.split())
    assert "256 sessions x 3.0 acts = 768 rows" in shown and "a reply of 300" in shown
    assert " h for the run" in shown and "acts=3 response=300 steps=100" in shown and "acts: as --assume says" in shown
    assert "3.0 times the tokens" in shown
    assert "while another policy trains" in shown and shown.count("Qwen/Qwen3-4B, 4.02 B") == 2


def test_a_base_is_planned_once_with_its_adapters_below_it(plan):
    output = plan("+recipe=math/adapters", "--gpus", "4x80")
    assert output.count("Qwen/Qwen3-4B, 4.02 B") == 1 and output.count("rank 32, 66.1 M parameters") == 2
