"""Each rule names a witness, finds a problem in one configuration, and finds none after a change of it."""

import json
import re
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest
import torch
from omegaconf import DictConfig, OmegaConf
from transformers import AutoConfig
from verl.utils.model import load_valuehead_model

from verl_mas.checks.examined import ExaminedRun
from verl_mas.checks.rules import every_rule
from verl_mas.checks.rules.engines import NOSET
from verl_mas.config.modes import COLOCATED, SEPARATE
from verl_mas.config.run import load
from verl_mas.engines.serving import resolve_serving
from verl_mas.errors import ConfigError, ConfigWarning

AR, ACTOR, ROLLOUT, MODEL = ("actor_rollout_ref" + part for part in ("", ".actor", ".rollout", ".model"))
CORRECTION, SAMPLER = "algorithm.rollout_correction", "trainer.v1.sampler"
MINI, TENSOR = f"{ACTOR}.ppo_mini_batch_size", f"{ROLLOUT}.tensor_model_parallel_size"
MEMORY = f"{ROLLOUT}.gpu_memory_utilization"
CHUNKED, BACKEND = f"{ROLLOUT}.enable_chunked_prefill", f"{ROLLOUT}.checkpoint_engine.backend"
STORAGE, REJECTED = "transfer_queue.backend.SimpleStorage.total_storage_size", f"{CORRECTION}.rollout_rs_threshold"
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
APART = {**WAIT, **TOKEN, "trainer.v1.trainer_mode": SEPARATE.name, BACKEND: "ray"}
AHEAD = "trainer.v1.colocate_async.num_warmup_batches"
OWN = {"rollout_correction": {"bypass_mode": True}}
BY_TOKENS = {f"{ACTOR}.use_dynamic_bsz": True}
BATCHED = {f"{ROLLOUT}.max_num_batched_tokens": 1025, CHUNKED: False}
ON_A = {"solver": {"policy": "a"}, "verifier": {"policy": "a"}}
ADAPTER = {"mas.policies": {"main": {"trainable": False}, "a": {"adapter_of": "main"}}, "mas.agents": ON_A}
ESTIMATOR = "algorithm.adv_estimator"
GAE = {ESTIMATOR: "gae"}
FORKS = {"mas.workflow.name": "planner_executor", "mas.branch.k": 4, "mas.workflow.args": {"fork": "first"}}
PAST = {"snapshot": {"of": "main", "every": 5}}
FAR = {"base_url": "host:80", "model": "m"}
# Fields of config.json of a model that is not here.
SEVEN = {"model_type": "qwen2", "num_attention_heads": 28, "num_key_value_heads": 4, "max_position_embeddings": 4096}
STATEFUL = {**SEVEN, "model_type": "qwen3_next", "layer_types": ["linear_attention"]}
HEAD = {**SEVEN, "tie_word_embeddings": False}
Settings = Mapping[str, object]
# Rule -> settings in which it finds a problem, and a change of these settings after which it finds none. A value of
# `config.json` makes a model.
CASES: Mapping[str, tuple[Settings, Settings]] = {
    "mini_batch_per_gpu": ({**STOCK, **GPUS, MINI: 1}, {MINI: 2}),
    "many_updates": ({"data.train_batch_size": 64, MINI: 1}, {MINI: 8}),
    "group_of_one": ({**STOCK, f"{ROLLOUT}.n": 1}, {f"{ROLLOUT}.n": 2}),
    "token_budget": ({**BY_TOKENS, f"{ACTOR}.ppo_max_token_len_per_gpu": 1000}, {f"{ACTOR}.use_dynamic_bsz": False}),
    "lengths_fit": ({"config.json": SEVEN, "data.max_response_length": 4000}, {"data.max_response_length": 512}),
    "batched_tokens": ({**GPUS, **BATCHED, "data.max_response_length": 2048}, {CHUNKED: True}),
    "nothing_saved": ({"trainer.save_freq": -1}, {"trainer.total_training_steps": 2}),
    "rate_of_adapter": ({f"{MODEL}.lora_rank": 16, f"{ACTOR}.optim.lr": 5e-7}, {f"{ACTOR}.optim.lr": 1e-5}),
    "memory_fraction": ({**GPUS, MEMORY: 0.98}, {MEMORY: 0.9}),
    "whole_heads": ({**GPUS, "config.json": SEVEN, TENSOR: 8}, {TENSOR: 4}),
    "whole_shards": ({**GPUS, f"{ACTOR}.fsdp_config.fsdp_size": 3}, {f"{ACTOR}.fsdp_config.fsdp_size": 4}),
    "ulysses_attention": ({**GPUS, f"{ACTOR}.ulysses_sequence_parallel_size": 2}, FLASH),
    "packed_state": (
        {"config.json": STATEFUL, f"{MODEL}.use_remove_padding": True},
        {"config.json": {**STATEFUL, "model_type": "qwen3_5"}},
    ),
    "fused_head": (
        {"config.json": HEAD, f"{MODEL}.use_fused_kernels": True, f"{ACTOR}.strategy": "fsdp2"},
        {"config.json": {**HEAD, "model_type": "qwen3_vl"}},
    ),
    "fsdp_alone": ({f"{ACTOR}.strategy": "megatron"}, {f"{ACTOR}.strategy": "fsdp2"}),
    "saved_in_time": ({f"{ACTOR}.checkpoint.async_save": True}, {f"{ACTOR}.checkpoint.async_save": False}),
    "unread_adapter": ({f"{MODEL}.lora_adapter_path": "/adapter"}, {f"{MODEL}.lora_rank": 4}),
    "adapter_reaches_engine": ({**APART, f"{MODEL}.lora_rank": 4}, {f"{MODEL}.lora.merge": True}),
    "unread_by_verl": ({f"{ACTOR}.clip_ratio": 0.3}, {f"{ACTOR}.clip_ratio_high": 0.3}),
    "bypass_unread": ({f"{CORRECTION}.bypass_mode": True, **TOKEN}, {f"{CORRECTION}.bypass_mode": False}),
    "log_probs_of_engine": (
        {**TOKEN, f"{ROLLOUT}.calculate_log_probs": False},
        {f"{ROLLOUT}.calculate_log_probs": True},
    ),
    "rejection": ({f"{CORRECTION}.rollout_rs": "token_k1", REJECTED: "x"}, {REJECTED: "0.5_2.0"}),
    "truncated_sampling": ({**WAIT, **TOKEN, f"{ROLLOUT}.top_p": 0.9}, {f"{ROLLOUT}.top_p": 1}),
    "estimator_of_team": ({ESTIMATOR: "grpo"}, {ESTIMATOR: "agent_grpo"}),
    "settings_of_critics": ({**GAE, "mas.advantage": {"scale": "none"}}, {"mas.advantage": None}),
    "critic_beside_policy": ({**GAE, **ADAPTER}, {ESTIMATOR: "agent_grpo"}),
    "critic_loadable": ({**GAE, "config.json": {**SEVEN, "model_type": "qwen2_5_vl"}}, {"config.json": SEVEN}),
    "settings_of_team": ({**WAIT, "skip.rollout_tq.enable": True}, {"skip.rollout_tq.enable": False}),
    "reward_model_apart": ({"reward.reward_model.enable": True}, {"reward.reward_model.enable": False}),
    "estimator_has_its_columns": ({**STOCK, ESTIMATOR: "agent_rae"}, {ESTIMATOR: "agent_grpo"}),
    "forks_compared": ({**FORKS, ESTIMATOR: "at_grpo"}, {ESTIMATOR: "agent_grpo"}),
    "some_reward": ({ESTIMATOR: "fold_grpo", "mas.reward.preset": "sparse"}, {"mas.reward.preset": "at_grpo"}),
    "filtered_groups": ({"mas.filter.drop": "uniform", ESTIMATOR: "agent_rae"}, {ESTIMATOR: "agent_grpo"}),
    "same_replies": (
        {f"{ROLLOUT}.temperature": 0, f"{ROLLOUT}.val_kwargs.temperature": 0},
        {f"{ROLLOUT}.temperature": 1},
    ),
    "one_temperature": (
        {f"{MODEL}.use_fused_kernels": True, "mas.agents": {"solver": {"sampling": {"temperature": 0.5}}}},
        {"mas.agents": None},
    ),
    "somebody_learns": ({"mas.policies": {"main": {"trainable": False}}}, {"mas.policies": None}),
    "kl_in_reward": ({**TWO, "algorithm.use_kl_in_reward": True}, {"mas.policies": None, "mas.agents": None}),
    "one_weighting": (
        {"mas.loss.weighting": "row", f"{ACTOR}.loss_agg_mode": "seq-mean-token-sum"},
        {f"{ACTOR}.loss_agg_mode": "token-mean"},
    ),
    "skipped_rows": ({"mas.skip_zero_advantage": True, f"{ACTOR}.use_kl_loss": True}, {f"{ACTOR}.use_kl_loss": False}),
    "shared_prefixes": (
        {"mas.shared_prefixes": True, "config.json": {**SEVEN, "use_sliding_window": True}},
        {"config.json": SEVEN},
    ),
    "team_meant": ({"trainer.v1.trainer_mode": "sync"}, STOCK),
    "engine_installed": (GPUS, {f"{ROLLOUT}.name": "transformers"}),
    "compiler_installed": ({**GPUS, f"{ROLLOUT}.name": "sglang"}, GPUS),
    "gpus_hidden": ({**POOLS, f"{ROLLOUT}.name": "sglang"}, {f"{ROLLOUT}.name": "vllm"}),
    "whole_replicas": (
        {**GPUS, "trainer.nnodes": 2, "trainer.n_gpus_per_node": 3, TENSOR: 4},
        {"trainer.nnodes": 4, "trainer.n_gpus_per_node": 8, TENSOR: 16},
    ),
    "servers_apart": ({**TWO, f"{ROLLOUT}.name": "trtllm"}, {"mas.policies": None, "mas.agents": None}),
    "memory_of_engines": ({**TWO, **GPUS, "mas.pools": {"shared": {"serving": "together"}}}, {MEMORY: 0.3}),
    "pools_used": ({"mas.pools": {"other": {}}}, {"mas.policies": {"main": {"pool": "other"}}}),
    "transfer_installed": ({**GPUS, BACKEND: "nccl"}, {BACKEND: "ray"}),
    "attention_installed": ({**FLASH, **GPUS}, {f"{MODEL}.override_config.attn_implementation": "sdpa"}),
    "stale_enough": ({**WAIT, f"{SAMPLER}.max_off_policy_threshold": 1}, {AHEAD: 0}),
    "rows_stored": ({STORAGE: 8}, {STORAGE: 32}),
    # Each policy has its own correction.
    "corrected": (
        {**TWO, **WAIT, "mas.policies": {"a": OWN, "b": {}}},
        {"mas.policies": {"a": OWN, "b": OWN}},
    ),
    "awake_together": (
        {**TWO, **WAIT, "mas.pools": {"shared": {"serving": "phases"}}},
        {"mas.pools": None, MEMORY: 0.3},
    ),
    "engines_apart": ({**APART, "mas.policies": {"main": {"engines": "shared"}}}, {"mas.policies": None}),
    "weights_sent": ({**APART, BACKEND: "naive"}, {BACKEND: "ray"}),
    "names": ({"mas.pools": {"a/b": {}}}, {"mas.pools": {"b": {}}}),
    "acting": ({"mas.agents": {"solver": {"policy": "mian"}}}, {"mas.agents": {"solver": {"policy": "main"}}}),
    "snapshots": (
        {"mas.policies": {"main": {}, "past": {**PAST, "overrides": {"model": {"path": "/other"}}}}},
        {"mas.policies": {"main": {}, "past": PAST}},
    ),
    "endpoints": (
        {"mas.policies": {"main": {}, "far": {"remote": FAR}}},
        {"mas.policies": {"main": {}, "far": {"remote": {**FAR, "base_url": "http://host:80"}}}},
    ),
    "sampling": (
        {"mas.agents": {"solver": {"sampling": {"extra": {"min_tokenz": 4}}}}, **GPUS},
        {"mas.agents": {"solver": {"sampling": {"extra": {"min_tokens": 4}}}}},
    ),
}
# Rule -> attributes that are replaced, so that the rule sees another machine or other packages.
THERE: Mapping[str, Mapping[str, object]] = {
    "compiler_installed": {"torch.version.cuda": "13.0", "torch.cuda.is_available": lambda: True}
    | {"torch.cuda.get_device_capability": lambda: (9, 0), "verl_mas.checks.rules.engines.nvcc": lambda: None},
    "gpus_hidden": {"torch.cuda.device_count": lambda: 8},
}
# A witness is a public thread, a page or commit of ours that describes the problem, or a script of verl.
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
def test_a_rule_has_a_witness_finds_one_case_and_leaves_it_alone_after_a_change(name, run, monkeypatch):
    rule = every_rule()[name]
    assert WITNESS.search(rule.seen), f"{name}: {rule.seen}"
    assert re.fullmatch(r".*\.", rule.check.__doc__), "a rule is one sentence on one line"
    for there, what in THERE.get(name, {}).items():
        monkeypatch.setattr(there, what)
    if name == "gpus_hidden":
        monkeypatch.setenv(NOSET, "1")
    finds, change = CASES[name]
    assert list(rule.problems(run(finds))), "it finds nothing"
    assert [problem.value for problem in rule.problems(run({**finds, **change}))] == []


def test_an_engine_that_verl_cannot_start_and_a_gpu_that_flash_attention_does_not_have_are_found(run, monkeypatch):
    made = run({**GPUS, **FLASH, f"{ROLLOUT}.name": "sglang"})
    monkeypatch.setattr("verl_mas.engines.facts.Contract.unstartable", "verl reads the fields of ServerArgs")
    monkeypatch.setattr("verl_mas.checks.rules.engines.old_gpu", lambda: "a V100")
    rules = [every_rule()[name] for name in ("engine_installed", "attention_installed")]
    found = " ".join(f"{problem.value}: {problem.rule}" for rule in rules for problem in rule.problems(made))
    assert "is installed: verl reads the fields" in found and "flash_attention_2 on a V100" in found


def test_a_policy_that_learns_in_one_of_its_places_is_not_called_idle(two):
    def idle(**swap):
        agents = {"solver": {"policy": "a", "trainable": False}, "verifier": {"policy": "b"}}
        run = ExaminedRun.of(two(mas__agents=agents, mas__swap=swap))
        return [problem.value for problem in every_rule()["somebody_learns"].problems(run)]

    assert idle(agents=[], every=5) == ["mas.policies.a: every agent on it has trainable=false"]
    assert idle(agents=["solver", "verifier"], every=5) == []


# Problem -> settings in which all rules together find this problem and no other. The run has critics unless the
# settings name an estimator.
OF_CRITICS: Mapping[str, Settings] = {
    "mas.advantage.scale=none with gae": {"mas.advantage": {"scale": "none"}},
    "mas.skip_zero_advantage=True with gae": {"mas.skip_zero_advantage": True},
    "mas.policies.a.adapter_of=main with gae": ADAPTER,
    "critic.model.lora_rank=8": {"critic.model.lora_rank": 8},
    "critic.enable=False": {"critic.enable": False},
    "critic.ppo_mini_batch_size=3 with actor_rollout_ref": {"critic.ppo_mini_batch_size": 3},
    "critic.fsdp.ulysses_sequence_parallel_size=2": {"critic.fsdp.ulysses_sequence_parallel_size": 2},
    "critic.ppo_infer_max_token_len_per_gpu=100": {"critic.ppo_infer_max_token_len_per_gpu": 100},
    "trainer.v1.trainer_mode=mas_colocate_async with gae": {**WAIT, **TOKEN},
    "mas.filter.drop=uniform with algorithm.adv_estimator=gae": {"mas.filter": {"drop": "uniform"}},
    "critic.enable=True with algorithm.adv_estimator=agent_grpo": {"critic.enable": True, ESTIMATOR: "agent_grpo"},
    "trainer.critic_warmup=5": {"trainer.critic_warmup": 5, ESTIMATOR: "agent_grpo"},
}


@pytest.mark.parametrize("value", OF_CRITICS)
def test_what_has_no_meaning_with_critics_or_without_them_is_one_error(run, value):
    made = run({**GAE, **OF_CRITICS[value]})
    problems = [one for rule in every_rule().values() if not rule.here for one in rule.problems(made)]
    (error,) = (one for one in problems if isinstance(one, ConfigError))
    assert error.value.startswith(value)


def test_verl_has_no_critic_of_a_model_that_reads_images_without_trl(tmp_path):
    with pytest.raises(RuntimeError, match="please install trl") as refused:
        load_valuehead_model(str(tmp_path), torch.float32, AutoConfig.for_model("qwen2_5_vl"), False)
    assert "Unrecognized configuration class" in str(refused.value.__cause__)


@pytest.mark.parametrize(
    ("name", "settings", "found"),
    [
        ("group_of_one", {f"{ROLLOUT}.n": 1, ESTIMATOR: "agent_grpo"}, [ConfigError]),
        ("group_of_one", {f"{ROLLOUT}.n": 1, ESTIMATOR: "agent_grpo", "mas.advantage": {"shrinkage": 2}}, []),
        ("corrected", WAIT, [ConfigWarning]),
        ("corrected", {**WAIT, f"{SAMPLER}.max_off_policy_threshold": 3}, [ConfigError]),
        ("corrected", {**WAIT, AHEAD: 0}, []),
    ],
)
def test_a_rule_has_exceptions_and_warns_or_refuses(name, settings, found, run):
    assert [type(problem) for problem in every_rule()[name].problems(run(settings))] == found


def test_without_gpus_nothing_is_reported_about_a_compiler(run, monkeypatch):
    for there, what in THERE["compiler_installed"].items():
        monkeypatch.setattr(there, what)
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    monkeypatch.setattr("torch.cuda.get_device_capability", lambda: 1 / 0)
    assert [*every_rule()["compiler_installed"].problems(run({**GPUS, f"{ROLLOUT}.name": "sglang"}))] == []
