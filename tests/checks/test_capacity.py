"""Whether a run fits on other machines than this one."""

import json

import pytest

from verl_mas.checks.run import examine_command, plan_command
from verl_mas.planning.hardware import parse_gpus

FOUR, EIGHT = parse_gpus("4x80"), parse_gpus("8x80")
KEY = "actor_rollout_ref.rollout.gpu_memory_utilization"
# Two policies of 4B on a recipe's settings, with the context of the model and fractions of these numbers.
WHOLE_CONTEXT = "actor_rollout_ref.rollout.max_model_len=null"
SEPARATE = ["+recipe=math/separate", "actor_rollout_ref.rollout.name=vllm", f"{KEY}=0.3", WHOLE_CONTEXT]


@pytest.fixture(autouse=True)
def nothing_here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def test_a_recipe_is_planned_without_gpus_data_or_model_files():
    plan, report = plan_command(SEPARATE, FOUR)
    assert report.accepted and plan.fits
    solver = plan.policies["solver"]
    assert (solver["replicas"], solver["updates"], solver["context"]) == (4, 1, 40960)
    assert solver["kv_tokens"] == pytest.approx(100_000, rel=0.01)
    assert solver["concurrent"] == 4 * (solver["kv_tokens"] // 40960)
    assert "a table in verl-mas" in solver["source"]
    assert plan.gpus == 4 and plan.time["step"].sessions == 256
    assert plan.disk == pytest.approx(90, rel=0.01)


def test_a_model_whose_size_is_unknown_is_refused_and_one_with_a_config_is_not(tmp_path):
    _, report = plan_command(["+recipe=math/shared", "actor_rollout_ref.model.path=owner/model"], FOUR)
    assert any("the size of model.path=owner/model is not known" in error.value for error in report.errors)
    fields = {"model_type": "qwen3", "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2}
    fields |= {"num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16, "vocab_size": 50}
    (tmp_path / "config.json").write_text(json.dumps(fields | {"max_position_embeddings": 65536}))
    here = f"actor_rollout_ref.model.path={tmp_path}"
    plan, _ = plan_command(["+recipe=math/shared", WHOLE_CONTEXT, here], FOUR)
    assert plan.policies["main"]["context"] == 65536 and "config.json" in plan.policies["main"]["source"]
    (tmp_path / "config.json").write_text(json.dumps({**fields, "model_type": "qwen4_exp"}))
    _, report = plan_command(["+recipe=math/shared", here], FOUR)
    (error,) = report.errors
    assert error.value.endswith("Unrecognized model identifier: qwen4_exp") and "transformers" in error.rule


def test_a_server_that_only_the_machines_of_the_run_reach_is_a_warning():
    report = examine_command(["+recipe=search/shared", "mas.workflow.args.retriever=http://127.0.0.1:9/retrieve"], FOUR)
    assert report.accepted, report.problems
    (warning,) = (warning for warning in report.warnings if "127.0.0.1:9" in warning.value)
    assert "true of this machine; the run is on 4 GPUs" in warning.reason


def test_an_agent_on_a_policy_that_is_not_there_has_no_plan_and_no_traceback():
    plan, report = plan_command([*SEPARATE, "mas.agents.solver.policy=other"], FOUR)
    assert plan is None and report.verdict == "refused: 2 errors"


def test_a_policy_that_is_served_elsewhere_is_planned_on_two_pools():
    apart = [f"++mas.policies.{name}.engines=serve" for name in ("solver", "verifier")]
    mode = ["trainer.v1.trainer_mode=mas_separate_async", "++mas.pools.serve.n_gpus_per_node=2"]
    plan, report = plan_command([*SEPARATE, *apart, *mode], EIGHT)
    assert plan is not None and plan.gpus == 4 + 2, report.problems
    (train, serve), solver = (plan.pools[name] for name in ("shared", "serve")), plan.policies["solver"]
    assert train["policies"] == serve["policies"] == ["solver", "verifier"]
    assert "KV cache" in serve["parts"] and "KV cache" not in train["parts"] and "Adam" not in serve["parts"]
    assert solver["replicas"] == 2
    assert solver["gpu"]["update"] <= train["gpu"] and solver["gpu"]["rollout"] <= serve["gpu"]


# The settings of examples/grpo_trainer/run_qwen2-7b.sh of verl 0.7.1 on 8 x 80 GB that decide about memory.
STOCK = ["algorithm.adv_estimator=grpo", "actor_rollout_ref.actor.use_kl_loss=True", "trainer.n_gpus_per_node=8"]
STOCK += ["actor_rollout_ref.rollout.name=vllm", "actor_rollout_ref.rollout.tensor_model_parallel_size=2"]
STOCK += [f"{KEY}=0.6", "data.train_batch_size=1024", "actor_rollout_ref.rollout.n=5", "data.max_response_length=1024"]
STOCK += ["actor_rollout_ref.actor.ppo_mini_batch_size=256", "actor_rollout_ref.model.path=Qwen/Qwen2.5-7B-Instruct"]
STOCK += ["data.max_prompt_length=512"]
OF_40 = [f"actor_rollout_ref.{key}_micro_batch_size_per_gpu=40" for key in ("actor.ppo", "rollout.log_prob")]


def test_a_worst_case_over_the_card_is_a_warning_with_its_odds_and_the_largest_micro_batch_that_fits():
    # By hand, 40 rows of 1,536 tokens: logits 17.4 GiB, activations 11.5, Adam 7.1, parameters and gradients 3.5
    # each, gathered 1.9, head 1.0, contexts 2.0, graphs 1.5.
    plan, report = plan_command([*STOCK, *OF_40], EIGHT)
    assert plan.policies["main"]["gpu"]["update"] == pytest.approx(49.5, abs=0.1) and not report.warnings
    assert report.accepted and plan.pools["shared"]["expected"] < 72.9
    # For 96 rows: logits 41.7, activations 27.6, and the other terms as above.
    large = [*STOCK, *(setting.replace("=40", "=96") for setting in OF_40)]
    plan, report = plan_command(large, EIGHT)
    (warning,) = report.warnings
    assert plan.pools["shared"]["gpu"] == pytest.approx(89.9, abs=0.1) and plan.fits
    assert "less than once in a million steps" in warning.reason and warning.value.startswith("worst case")
    assert "ppo_max_token_len_per_gpu=65536" in warning.fix and "2.25 times as many" in warning.fix
    changed = warning.fix.removeprefix("set ").partition(" (")[0].split()
    assert not plan_command([*large, *changed], EIGHT)[1].warnings
    # Padded rows are full in every step.
    padded = plan_command([*large, "actor_rollout_ref.model.use_remove_padding=False"], EIGHT)[1]
    assert "takes 89.9 GiB" in padded.errors[0].value


def test_prompts_are_measured_where_data_and_tokenizer_are_here(tmp_path, letters):
    import pandas

    prompt = [{"role": "user", "content": "1 2 3 4 5 6 7 8"}]
    pandas.DataFrame({"prompt": [prompt] * 100}).to_parquet(tmp_path / "train.parquet")
    data = [f"data.train_files={tmp_path}/train.parquet", "data.train_batch_size=10", "trainer.total_epochs=3"]
    data.append("actor_rollout_ref.actor.ppo_mini_batch_size=8")
    plan, report = plan_command([*STOCK, *OF_40, *data, f"actor_rollout_ref.model.path={letters}/model"], EIGHT)
    assert report.accepted, report.problems
    step = plan.time["step"]
    assert 8 <= step.prompt == step.task < 128 and step.steps == 30
    assert step.sources["prompt"].startswith("the first 64 rows") and step.sources["response"].startswith("half")


def test_a_context_that_the_cache_does_not_hold_is_named():
    shared = ["+recipe=math/shared", WHOLE_CONTEXT, "actor_rollout_ref.model.path=Qwen/Qwen2.5-7B"]
    shared.append("actor_rollout_ref.model.use_fused_kernels=false")

    def said(engine, share):
        return plan_command([*shared, f"{KEY}={share}", f"actor_rollout_ref.rollout.name={engine}"], FOUR)[1]

    (warning,) = said("sglang", 0.25).warnings
    assert "131072 tokens" in warning.value and "max_model_len=12288" in warning.fix
    edge = said("vllm", 0.3)
    assert edge.accepted and "the engine starts only if it can hold one such request" in edge.problems
    (unsure,) = said("vllm", 0.25).warnings
    assert "context, as rollout.max_model_len is null" in unsure.reason and "max_model_len=12288" in unsure.fix
