"""A policy's work around verl's update, and the team's use of its profilers, outside Ray."""

from functools import partial
from types import SimpleNamespace
from unittest.mock import Mock

import pytest
import torch
from omegaconf import OmegaConf
from tensordict import TensorDict
from transfer_queue import KVBatchMeta

from verl_mas.config.run import Run
from verl_mas.config.schema import FilterSpec
from verl_mas.trainer.batching import UpdatePlan
from verl_mas.trainer.filters import TaskFilter
from verl_mas.trainer.policies.local_policy import LocalPolicy
from verl_mas.trainer.policies.policy_trainer import PolicyTrainer
from verl_mas.trainer.step import PolicyRows
from verl_mas.trainer.trainer import TeamTrainer
from verl_mas.verl_ import data_plane
from verl_mas.verl_.row import KEPT_SHARE, LOSS_MASK, OLD_LOG_PROBS, RESPONSE_MASK, ROLLOUT_LOG_PROBS, ROLLOUT_WEIGHTS


def settings(**given):
    """A view of a policy."""
    return SimpleNamespace(**{"shares_prefixes": False, "skips_zero_advantage": False, **given})


@pytest.mark.parametrize(
    ("offload", "emptied"),
    [
        ({"param_offload": True, "optimizer_offload": True}, [("cpu", True, False, False)]),
        # The parameters are on the GPU, and must stay there.
        ({"param_offload": False, "optimizer_offload": True}, []),
        ({"param_offload": False, "optimizer_offload": False}, []),
    ],
)
def test_after_an_update_the_gpu_gets_back_what_an_offloaded_optimiser_held(offload, emptied):
    policy, calls = object.__new__(PolicyTrainer), []
    policy.config = OmegaConf.create({"actor_rollout_ref": {"actor": {"fsdp_config": offload}}})
    policy.actor_rollout_wg = SimpleNamespace(to=lambda *device, **parts: calls.append((*device, *parts.values())))
    policy.empty_cache()
    assert calls == emptied


@pytest.mark.parametrize("profiled", [True, False])
def test_the_engines_of_every_policy_stop_profiling_when_the_rollout_ends(monkeypatch, profiled):
    """verl's own trainer stops them at the same place, in `on_sample_end`."""
    events = []
    trainer = object.__new__(TeamTrainer)
    trainer.global_steps, trainer.curr_step_profile = 1, profiled
    trainer.replay_buffer = SimpleNamespace(sample=lambda **what: ("rows", {}))
    trainer._sessions = SimpleNamespace(metrics=dict, busy={})
    trainer.filter = TaskFilter(FilterSpec(), lambda rows: [])
    trainer.policies = {}
    for name in ("a", "b"):
        trainer.policies[name] = policy = object.__new__(PolicyTrainer)
        policy.llm_server_manager = SimpleNamespace(stop_profile=partial(events.append, f"stop {name}"))
    monkeypatch.setattr(TeamTrainer, "_count_sessions", lambda self: None)
    monkeypatch.setattr(TeamTrainer, "_sleep", lambda self: events.append("sleep"))

    # The rest of the step is not tested here.
    monkeypatch.setattr("verl_mas.trainer.trainer.in_order", Mock(side_effect=StopIteration))
    with pytest.raises(StopIteration):
        trainer._step_once({}, {}, 4)
    assert events == ["sleep", *(["stop a", "stop b"] if profiled else [])]


@pytest.mark.parametrize(("enable", "frees", "woken"), [(True, True, 1), (True, False, 0), (False, True, 0)])
def test_a_reward_model_is_awake_when_sessions_are_scored(monkeypatch, make, enable, frees, woken):
    """verl puts the model to sleep after its start. SGLang exits if it resumes memory that it did not release."""
    model = Mock() if enable else None
    made = SimpleNamespace(reward_model_manager=model, reward_loop_workers=[], reward_loop_worker_handles=[])
    monkeypatch.setattr("verl_mas.trainer.trainer.RewardLoopManager", lambda **given: made)
    trainer = object.__new__(TeamTrainer)
    trainer.pools = SimpleNamespace(reward=None)
    trainer.config = make(reward__reward_model__enable=enable, reward__reward_model__rollout__free_cache_engine=frees)
    monkeypatch.setattr("verl_mas.trainer.trainer.note_when_ready", lambda *given: None)
    trainer._start_reward_workers()
    assert trainer.get_reward_handles() is made.reward_loop_worker_handles
    assert (model.wake_up.call_count if model else 0) == woken


@pytest.mark.parametrize(
    ("own", "weights"),
    [
        ({"rollout_is": "token"}, [2.0, 1.0]),
        ({"rollout_is": "token", "rollout_is_threshold": "0.5_1.5"}, [0.0, 1.0]),
        ({}, None),
    ],
)
def test_the_rows_of_a_policy_are_corrected_as_the_policy_says(make, monkeypatch, own, weights):
    policies = {"a": {"rollout_correction": own}, "b": {"rollout_correction": {"rollout_is": "token"}}}
    policy = object.__new__(PolicyTrainer)
    policy.config = Run.of(make(mas__policies=policies)).view("a").copy()
    # The engine sampled the first token with 1 / e times the trainer's probability.
    stored = {ROLLOUT_LOG_PROBS: [-1.0, 0.0], OLD_LOG_PROBS: [0.0, 0.0], RESPONSE_MASK: [1, 1]}
    rows = {name: torch.nested.nested_tensor([row], layout=torch.jagged) for name, row in stored.items()}
    monkeypatch.setattr(data_plane, "read", lambda batch, fields: TensorDict(dict(rows), batch_size=[1]))
    batch, metrics = KVBatchMeta(partition_id="train", keys=[], tags=[], extra_info={}), {}
    assert policy.read(batch, metrics)[1] == {} == metrics, "without old log-probs nothing is compared"
    batch.fields = [OLD_LOG_PROBS]
    _, changed = policy.read(batch, metrics)
    found = changed[ROLLOUT_WEIGHTS].unbind()[0].tolist() if ROLLOUT_WEIGHTS in changed else None
    assert found == weights


@pytest.mark.parametrize(("every", "computed"), [(1, [4, 6, 7, 8, 9, 10]), (4, [4, 6, 8]), (10, [4, 6, 10])])
@pytest.mark.parametrize("reference", [True, False])
def test_old_log_probs_are_computed_after_a_start_and_then_every_so_many_steps(monkeypatch, every, computed, reference):
    """The run resumes at step 4 and has no rows at step 5. The reference's log-probs are computed in every step."""
    calls = []
    policy = object.__new__(PolicyTrainer)
    policy.prepared, policy.view, policy.use_reference_policy = 0, settings(old_log_probs_every=every), reference
    policy.use_critic = False
    policy.config = OmegaConf.create({"actor_rollout_ref": {"rollout": {"temperature": 1.0}}})
    monkeypatch.setattr(PolicyTrainer, "balance", lambda self, rows, metrics: rows)
    for name in ("old", "ref"):
        monkeypatch.setattr(
            LocalPolicy,
            f"_compute_{name}_log_prob",
            lambda self, rows, metrics, name=name: calls.append((name, self.global_steps)) or rows,
        )
    for policy.global_steps in (4, 6, 7, 8, 9, 10):
        policy.prepare(KVBatchMeta(partition_id="train", keys=[], tags=[], extra_info={}), {})
    assert [step for name, step in calls if name == "old"] == computed
    assert len(calls) - len(computed) == 6 * reference


@pytest.mark.parametrize("rejected", [False, True])
@pytest.mark.parametrize(("loss", "share"), [("vanilla", 8 / 16), ("sapo", 1.0)])
def test_rows_that_are_skipped_count_in_the_mean_with_the_tokens_that_were_rejected(monkeypatch, rejected, loss, share):
    """verl's mean over tokens includes rejected tokens. The loss sapo averages over rows in every mode."""
    masks = [torch.ones(4), torch.zeros(4) if rejected else torch.ones(4), torch.ones(8)]
    policy = object.__new__(PolicyTrainer)
    policy.plan, policy.view = UpdatePlan(1, 1, 1), settings(skips_zero_advantage=True)
    actor = {"loss_agg_mode": "token-mean", "policy_loss": {"loss_mode": loss}}
    policy.config = OmegaConf.create({"actor_rollout_ref": {"actor": actor}})
    monkeypatch.setattr(policy, "_balance_batch", lambda rows, metrics: rows, raising=False)
    batch = KVBatchMeta(partition_id="train", keys=["1-0_0_0", "1-0_1_0", "1-0_2_0"], tags=[{}, {}, {}])
    data = {RESPONSE_MASK: masks, LOSS_MASK: [torch.ones_like(mask) for mask in masks]}
    data = {name: torch.nested.as_nested_tensor(rows, layout=torch.jagged) for name, rows in data.items()}
    part = PolicyRows(batch, TensorDict(data, batch_size=[3]), advantages=torch.tensor([1.0, 1.0, 0.0]))
    assert policy.rows_to_train(part).extra_info[KEPT_SHARE] == share
    policy.view = settings()
    assert policy.rows_to_train(part) is batch


@pytest.mark.parametrize("shares", [True, False])
def test_rows_of_a_task_are_side_by_side_where_prefixes_are_shared(monkeypatch, shares):
    policy = object.__new__(PolicyTrainer)
    policy.plan, policy.view = UpdatePlan(1, 2, 2), settings(shares_prefixes=shares)
    monkeypatch.setattr(policy, "_balance_batch", lambda rows, metrics: rows, raising=False)
    keys = ["1-0_0_0", "1-1_0_0", "1-0_1_0", "1-1_1_0"]
    rows = policy.balance(KVBatchMeta(partition_id="train", keys=keys, tags=[{"seq_len": 5} for _ in keys]), {})
    assert (rows.keys == sorted(keys)) == shares


@pytest.mark.parametrize(("rank", "merge", "limit"), [(0, False, 1e-3), (4, False, 1e-3), (4, True, 0.1)])
def test_merged_adapters_are_rounded_where_engine_and_trainer_compute_in_float32(make, rank, merge, limit):
    float32 = {"rollout__dtype": "float32", "actor__fsdp_config__mixed_precision": {"param_dtype": "fp32"}}
    model = {"model__lora_rank": rank, "model__lora__merge": merge}
    policy = object.__new__(PolicyTrainer)
    policy.config = make(**{f"actor_rollout_ref__{key}": value for key, value in {**float32, **model}.items()})
    assert policy.log_prob_limit == limit
