"""Each rule has a witness, finds one case, and leaves another one alone."""

import json
import re
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest
from omegaconf import DictConfig, OmegaConf

from verl_mas.checks.examined import ExaminedRun
from verl_mas.checks.rules import every_rule
from verl_mas.checks.rules.engines import NOSET
from verl_mas.config.modes import COLOCATED, SEPARATE
from verl_mas.config.run import load
from verl_mas.engines.serving import resolve_serving

AR, ACTOR, ROLLOUT, MODEL = ("actor_rollout_ref" + part for part in ("", ".actor", ".rollout", ".model"))
CORRECTION, SAMPLER = "algorithm.rollout_correction", "trainer.v1.sampler"
GPUS = {"trainer.device": "cuda", "trainer.n_gpus_per_node": 8, f"{ROLLOUT}.name": "vllm"}
STOCK = {"mas": None, "trainer.v1.trainer_mode": "sync", "algorithm.adv_estimator": "grpo"}
TWO = {"mas.policies": {"a": {}, "b": {}}, "mas.agents": {"solver": {"policy": "a"}, "verifier": {"policy": "b"}}}
POOLS = {
    "trainer.device": "cuda",
    "mas.policies": {"a": {}, "b": {"pool": "other"}},
    "mas.pools": {"other": {}},
    "mas.agents": {"solver": {"policy": "a"}, "verifier": {"policy": "b"}},
}
FLASH = {f"{MODEL}.override_config.attn_implementation": "flash_attention_2"}
WAIT = {"trainer.v1.trainer_mode": COLOCATED.name, f"{SAMPLER}.max_off_policy_threshold": 2}
TOKEN = {f"{CORRECTION}.rollout_is": "token"}
APART = {**WAIT, **TOKEN, "trainer.v1.trainer_mode": SEPARATE.name, f"{ROLLOUT}.checkpoint_engine.backend": "ray"}
GAE = {"algorithm.adv_estimator": "gae"}
FOLD = {"algorithm.adv_estimator": "fold_grpo"}
FORKS = {"mas.workflow.name": "planner_executor", "mas.branch.k": 4, "mas.workflow.args": {"fork": "first"}}
PAST = {"snapshot": {"of": "main", "every": 5}}
FAR = {"base_url": "host:80", "model": "m"}
# Fields of config.json of a model that is not here.
SEVEN = {"model_type": "qwen2", "num_attention_heads": 28, "num_key_value_heads": 4, "max_position_embeddings": 4096}
STATEFUL = {**SEVEN, "model_type": "qwen3_next", "layer_types": ["linear_attention"]}
HEAD = {**SEVEN, "tie_word_embeddings": False}
Settings = Mapping[str, object]
# Rule -> settings that it finds, and settings that it leaves alone; `config.json` makes a model.
CASES: Mapping[str, tuple[Settings, Settings]] = {
    "mini_batch_per_gpu": (
        {**STOCK, **GPUS, f"{ACTOR}.ppo_mini_batch_size": 1},
        {**STOCK, **GPUS, f"{ACTOR}.ppo_mini_batch_size": 2},
    ),
    "many_updates": ({"data.train_batch_size": 64, f"{ACTOR}.ppo_mini_batch_size": 1}, {}),
    "rows_for_every_update": ({"mas.updates_per_step": 64}, {"mas.updates_per_step": 32}),
    "group_of_one": ({**STOCK, f"{ROLLOUT}.n": 1}, {f"{ROLLOUT}.n": 1, "mas.advantage": {"shrinkage": 2}}),
    "token_budget": ({f"{ACTOR}.use_dynamic_bsz": True, f"{ACTOR}.ppo_max_token_len_per_gpu": 1000}, {}),
    "lengths_fit": ({"config.json": SEVEN, "data.max_response_length": 4000}, {"config.json": SEVEN}),
    "batched_tokens": (
        {
            **GPUS,
            "data.max_response_length": 2048,
            f"{ROLLOUT}.max_num_batched_tokens": 1025,
            f"{ROLLOUT}.enable_chunked_prefill": False,
        },
        {**GPUS, f"{ROLLOUT}.max_num_batched_tokens": 1025},
    ),
    "nothing_saved": ({"trainer.save_freq": -1}, {"trainer.save_freq": -1, "trainer.total_training_steps": 2}),
    "rate_of_adapter": (
        {f"{MODEL}.lora_rank": 16, f"{ACTOR}.optim.lr": 5e-7},
        {f"{MODEL}.lora_rank": 16, f"{ACTOR}.optim.lr": 1e-5},
    ),
    "memory_fraction": ({**GPUS, f"{ROLLOUT}.gpu_memory_utilization": 0.98}, GPUS),
    "whole_heads": (
        {**GPUS, "config.json": SEVEN, f"{ROLLOUT}.tensor_model_parallel_size": 8},
        {**GPUS, "config.json": SEVEN, f"{ROLLOUT}.tensor_model_parallel_size": 4},
    ),
    "whole_shards": ({**GPUS, f"{ACTOR}.fsdp_config.fsdp_size": 3}, {**GPUS, f"{ACTOR}.fsdp_config.fsdp_size": 4}),
    "ulysses_attention": (
        {**GPUS, f"{ACTOR}.ulysses_sequence_parallel_size": 2},
        {**GPUS, **FLASH, f"{ACTOR}.ulysses_sequence_parallel_size": 2},
    ),
    "packed_state": (
        {"config.json": STATEFUL, f"{MODEL}.use_remove_padding": True},
        {"config.json": {**STATEFUL, "model_type": "qwen3_5"}, f"{MODEL}.use_remove_padding": True},
    ),
    "fused_head": (
        {"config.json": HEAD, f"{MODEL}.use_fused_kernels": True, f"{ACTOR}.strategy": "fsdp2"},
        {
            "config.json": {**HEAD, "model_type": "qwen3_vl"},
            f"{MODEL}.use_fused_kernels": True,
            f"{ACTOR}.strategy": "fsdp2",
        },
    ),
    "fsdp_alone": ({f"{ACTOR}.strategy": "megatron"}, {f"{ACTOR}.strategy": "fsdp2"}),
    "saved_in_time": ({f"{ACTOR}.checkpoint.async_save": True}, {}),
    "unread_adapter": ({f"{MODEL}.lora_adapter_path": "/adapter"}, {f"{MODEL}.lora_alpha": 0}),
    "adapter_reaches_engine": (
        {**APART, f"{MODEL}.lora_rank": 4},
        {**APART, f"{MODEL}.lora_rank": 4, f"{MODEL}.lora.merge": True},
    ),
    "unread_by_verl": ({f"{ACTOR}.clip_ratio": 0.3}, {f"{ACTOR}.clip_ratio_high": 0.28}),
    "bypass_unread": ({f"{CORRECTION}.bypass_mode": True, **TOKEN}, TOKEN),
    "log_probs_of_engine": (
        {**TOKEN, f"{ROLLOUT}.calculate_log_probs": False},
        {**TOKEN, f"{ROLLOUT}.calculate_log_probs": True},
    ),
    "rejection": (
        {f"{CORRECTION}.rollout_rs": "token_k1", f"{CORRECTION}.rollout_rs_threshold": "x"},
        {f"{CORRECTION}.rollout_rs": "token_k1", f"{CORRECTION}.rollout_rs_threshold": "0.5_2.0"},
    ),
    "truncated_sampling": ({**WAIT, **TOKEN, f"{ROLLOUT}.top_p": 0.9}, {**WAIT, **TOKEN}),
    "estimator_of_team": ({"algorithm.adv_estimator": "grpo"}, {}),
    "settings_of_critics": ({**GAE, "mas.advantage": {"scale": "none"}}, {**GAE, "trainer.critic_warmup": 5}),
    "critic_beside_policy": (
        {**GAE, "mas.policies": {"a": {"adapter_of": "main"}}, "mas.agents": {"solver": {"policy": "a"}}},
        GAE,
    ),
    "critic_loadable": (
        {**GAE, "config.json": {**SEVEN, "model_type": "qwen2_5_vl"}},
        {**GAE, "config.json": SEVEN},
    ),
    "settings_of_team": ({**WAIT, "skip.rollout_tq.enable": True}, WAIT),
    "reward_model_apart": ({"reward.reward_model.enable": True}, {}),
    "estimator_has_its_columns": (
        {**STOCK, "algorithm.adv_estimator": "agent_rae"},
        {**STOCK, "algorithm.adv_estimator": "agent_grpo"},
    ),
    "forks_compared": ({**FORKS, "algorithm.adv_estimator": "at_grpo"}, FORKS),
    "some_reward": ({**FOLD, "mas.reward.preset": "sparse"}, {**FOLD, "mas.reward.preset": "at_grpo"}),
    "filtered_groups": (
        {"mas.filter.drop": "uniform", "algorithm.adv_estimator": "agent_rae"},
        {"mas.filter.drop": "uniform"},
    ),
    "same_replies": ({f"{ROLLOUT}.temperature": 0}, {f"{ROLLOUT}.val_kwargs.temperature": 0}),
    "one_temperature": (
        {f"{MODEL}.use_fused_kernels": True, "mas.agents": {"solver": {"sampling": {"temperature": 0.5}}}},
        {f"{MODEL}.use_fused_kernels": True},
    ),
    "somebody_learns": ({"mas.policies": {"main": {"trainable": False}}}, {}),
    "kl_in_reward": ({**TWO, "algorithm.use_kl_in_reward": True}, {"algorithm.use_kl_in_reward": True}),
    "one_weighting": (
        {"mas.loss.weighting": "row", f"{ACTOR}.loss_agg_mode": "seq-mean-token-sum"},
        {"mas.loss.weighting": "row"},
    ),
    "skipped_rows": (
        {"mas.skip_zero_advantage": True, f"{ACTOR}.use_kl_loss": True},
        {"mas.skip_zero_advantage": True, f"{ACTOR}.policy_loss.loss_mode": "cispo"},
    ),
    "shared_prefixes": (
        {"mas.shared_prefixes": True, "config.json": {**SEVEN, "use_sliding_window": True}},
        {"mas.shared_prefixes": True, "config.json": SEVEN},
    ),
    "team_meant": ({"trainer.v1.trainer_mode": "sync"}, STOCK),
    "engine_installed": ({**GPUS}, {}),
    "engine_startable": ({f"{ROLLOUT}.name": "sglang"}, {f"{ROLLOUT}.name": "transformers"}),
    "compiler_installed": ({**GPUS, f"{ROLLOUT}.name": "sglang"}, GPUS),
    "gpus_hidden": ({**POOLS, f"{ROLLOUT}.name": "sglang"}, {**POOLS, f"{ROLLOUT}.name": "vllm"}),
    "whole_replicas": (
        {**GPUS, "trainer.nnodes": 2, "trainer.n_gpus_per_node": 3, f"{ROLLOUT}.tensor_model_parallel_size": 4},
        {**GPUS, "trainer.nnodes": 4, f"{ROLLOUT}.tensor_model_parallel_size": 16},
    ),
    "servers_apart": ({**TWO, f"{ROLLOUT}.name": "trtllm"}, {f"{ROLLOUT}.name": "trtllm"}),
    "memory_of_engines": (
        {**TWO, **GPUS, "mas.pools": {"shared": {"serving": "together"}}},
        {**TWO, **GPUS, f"{ROLLOUT}.gpu_memory_utilization": 0.3},
    ),
    "pools_used": (
        {"mas.pools": {"other": {}}},
        {"mas.policies": {"main": {"pool": "other"}}, "mas.pools": {"other": {}}},
    ),
    "transfer_installed": ({**GPUS, f"{ROLLOUT}.checkpoint_engine.backend": "nccl"}, {}),
    "attention_installed": ({**FLASH, **GPUS}, {**GPUS, f"{MODEL}.override_config.attn_implementation": "sdpa"}),
    "attention_of_gpu": ({**FLASH, **GPUS}, FLASH),
    "stale_enough": ({**WAIT, f"{SAMPLER}.max_off_policy_threshold": 1}, WAIT),
    "rows_stored": ({"transfer_queue.backend.SimpleStorage.total_storage_size": 8}, {}),
    "corrected": (WAIT, {**WAIT, **TOKEN}),
    "awake_together": (
        {**TWO, **WAIT, "mas.pools": {"shared": {"serving": "phases"}}},
        {**TWO, **WAIT, f"{ROLLOUT}.gpu_memory_utilization": 0.3},
    ),
    "engines_apart": ({**APART, "mas.policies": {"main": {"engines": "shared"}}}, APART),
    "weights_sent": ({**APART, f"{ROLLOUT}.checkpoint_engine.backend": "naive"}, APART),
    "names": ({"mas.pools": {"a/b": {}}}, {}),
    "acting": ({"mas.agents": {"solver": {"policy": "mian"}}}, {}),
    "snapshots": (
        {"mas.policies": {"main": {}, "past": {**PAST, "overrides": {"model": {"path": "/other"}}}}},
        {"mas.policies": {"main": {}, "past": PAST}},
    ),
    "endpoints": ({"mas.policies": {"main": {}, "far": {"remote": FAR}}}, {}),
    "sampling": (
        {"mas.agents": {"solver": {"sampling": {"extra": {"min_tokenz": 4}}}}, **GPUS},
        {"mas.agents": {"solver": {"sampling": {"extra": {"min_tokens": 4}}}}, **GPUS},
    ),
}
# Rule -> attributes that are replaced, so that the rule sees another machine or other packages.
THERE: Mapping[str, Mapping[str, object]] = {
    "engine_startable": {"verl_mas.engines.facts.Contract.unstartable": "verl reads the fields of ServerArgs"},
    "compiler_installed": {"torch.version.cuda": "13.0", "torch.cuda.is_available": lambda: True}
    | {"torch.cuda.get_device_capability": lambda: (9, 0), "verl_mas.checks.rules.engines.nvcc": lambda: None},
    "gpus_hidden": {"torch.cuda.device_count": lambda: 8},
    "attention_of_gpu": {"verl_mas.checks.rules.engines.old_gpu": lambda: "a V100"},
}
# A public thread, a page or a commit of ours that says what had happened, or a script of verl.
WITNESS = re.compile(r"[\w./-]+#\d+|(docs|patches)/[\w/-]+\.md|commit [0-9a-f]{8}|verl's own scripts?")


@pytest.fixture
def run(make: Callable[..., DictConfig], tmp_path: Path) -> Callable[[Settings], ExaminedRun]:
    def run(settings: Settings) -> ExaminedRun:
        given = dict(settings)
        if fields := given.pop("config.json", None):
            (tmp_path / "config.json").write_text(json.dumps(fields))
            given[f"{MODEL}.path"] = str(tmp_path)
        config = make()
        for key, value in given.items():
            OmegaConf.update(config, key, value, force_add=True, merge=False)
        if config.mas is None or config.trainer.v1.trainer_mode == "sync":
            return ExaminedRun(config, load(None))
        return resolve_serving(ExaminedRun.of(config))

    return run


def test_every_rule_has_a_case() -> None:
    assert sorted(every_rule()) == sorted(CASES)


@pytest.mark.parametrize("name", sorted(CASES))
def test_a_rule_has_a_witness_finds_one_case_and_leaves_another_alone(name, run, monkeypatch):
    rule = every_rule()[name]
    assert WITNESS.search(rule.seen), f"{name}: {rule.seen}"
    assert rule.says.endswith(".") and "\n" not in rule.says
    for there, what in THERE.get(name, {}).items():
        monkeypatch.setattr(there, what)
    if name == "gpus_hidden":
        monkeypatch.setenv(NOSET, "1")
    finds, leaves = CASES[name]
    assert list(rule.problems(run(finds))), "it finds nothing"
    assert [problem.value for problem in rule.problems(run(leaves))] == []


def test_a_policy_that_learns_in_one_of_its_places_is_not_called_idle(two):
    def idle(**swap):
        agents = {"solver": {"policy": "a", "trainable": False}, "verifier": {"policy": "b"}}
        run = ExaminedRun.of(two(mas__agents=agents, mas__swap=swap))
        return [problem.value for problem in every_rule()["somebody_learns"].problems(run)]

    assert idle(agents=[], every=5) == ["mas.policies.a: every agent on it has trainable=false"]
    assert idle(agents=["solver", "verifier"], every=5) == []
