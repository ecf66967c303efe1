"""Advantages of one agent with one act per session equal those of verl's estimators. Each exception has a test."""

import logging
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from verl import DataProto
from verl.trainer.ppo import core_algos
from verl.trainer.ppo.v1.utils import compute_advantage_for_multi_trajectories

from verl_mas.advantage import AdvantageInput, AdvantageOptions, compute_advantages, verl_hook
from verl_mas.advantage.estimator import ESTIMATORS
from verl_mas.errors import DataError

# Group sizes of at least two; scores that differ within each group.
GROUPS = st.lists(st.lists(st.integers(-20, 20), min_size=2, max_size=9, unique=True), min_size=1, max_size=5)


@pytest.fixture(autouse=True)
def registered():
    verl_hook.register_estimators()


def verl_batch(groups, length=6):
    scores = torch.tensor([score / 10 for group in groups for score in group])
    uids = np.array([f"uid{g}" for g, group in enumerate(groups) for _ in group], dtype=object)
    order = torch.randperm(len(scores), generator=torch.Generator().manual_seed(len(scores)))
    mask = (torch.arange(length) < 1 + order[:, None] % length).long()
    rewards = torch.zeros(len(scores), length).scatter_(1, mask.sum(1, keepdim=True) - 1, scores[order, None])
    return {"token_level_rewards": rewards, "response_mask": mask, "index": uids[order.numpy()]}


def estimate(name, batch, **config):
    return core_algos.get_adv_estimator_fn(name)(**batch, config=config or None)[0]


def same(actual, expected, tolerance=1e-6):
    torch.testing.assert_close(actual, expected, atol=tolerance, rtol=tolerance)


GRPO = core_algos.compute_grpo_outcome_advantage
REINFORCE_PP = core_algos.compute_reinforce_plus_plus_outcome_advantage
UNSCALED = {"norm_adv_by_std_in_grpo": False}


@pytest.mark.parametrize(
    ("name", "config", "theirs", "tolerance"),
    [
        # verl computes in float32, where the mean of scores up to 20 is rounded by about 2e-6.
        ("agent_grpo", {}, GRPO, 4e-6),
        ("team_grpo", {}, GRPO, 4e-6),
        # verl's switch for unscaled advantages.
        ("agent_grpo", UNSCALED, lambda **batch: GRPO(**batch, **UNSCALED), 4e-6),
        ("agent_rloo", {}, core_algos.compute_rloo_outcome_advantage, 2e-6),
        # verl's estimator is called without discount. It adds 1e-8 under the root; we add eps to the deviation.
        (
            "agent_reinforce_pp",
            {},
            lambda index, **batch: REINFORCE_PP(**batch, config=SimpleNamespace(gamma=1.0)),
            1e-4,
        ),
    ],
    ids=["agent_grpo", "team_grpo", "unscaled", "agent_rloo", "agent_reinforce_pp"],
)
@settings(max_examples=100, deadline=None)
@given(groups=GROUPS)
def test_one_agent_is_verls_estimator(name, config, theirs, tolerance, groups):
    batch = verl_batch(groups)
    same(estimate(name, batch, **config), theirs(**batch)[0], tolerance)


def ours(name, uids, scores, **columns):
    """Compute the advantages of one agent with one act per session."""
    options = AdvantageOptions(**{key: columns.pop(key) for key in ("baseline", "scale") if key in columns})
    batch = AdvantageInput(scores, task=uids, session=range(len(scores)), agent=[0] * len(scores), **columns)
    return compute_advantages(name, batch, options).advantages


@pytest.mark.parametrize("scale", ["std", "none"])
@settings(max_examples=100, deadline=None)
@given(groups=st.lists(st.lists(st.integers(0, 3), min_size=2, max_size=6), min_size=1, max_size=4))
def test_the_best_other_session_as_baseline_is_verls_grpo_passk(scale, groups):
    batch = verl_batch([[score * 10 for score in group] for group in groups])
    config = {"norm_adv_by_std_in_grpo": scale == "std"}
    theirs = core_algos.compute_grpo_passk_outcome_advantage(**batch, config=config)[0][:, 0]
    scores = batch["token_level_rewards"].sum(1)
    same(ours("agent_grpo", batch["index"], scores, baseline="best_other", scale=scale), theirs)


PART_NAMES = ("team_reward", "local_reward", "penalty")
EIGHTHS = st.integers(0, 8).map(lambda n: n / 8)


@settings(max_examples=100, deadline=None)
@given(
    groups=st.lists(st.lists(st.tuples(EIGHTHS, EIGHTHS, EIGHTHS), min_size=2, max_size=6), min_size=1, max_size=4),
    weights=st.tuples(EIGHTHS, EIGHTHS),
)
def test_gdpo_of_rows_of_one_token_is_verls(groups, weights):
    team, local, penalty = (torch.tensor([row[i] for group in groups for row in group]) for i in range(3))
    uids = np.array([f"uid{g}" for g, group in enumerate(groups) for _ in group], dtype=object)
    one = torch.ones(len(uids), 1, dtype=torch.long)
    theirs = core_algos.compute_gdpo_outcome_advantage(
        torch.zeros(len(uids), 1),
        one,
        uids,
        config={"gdpo_reward_keys": PART_NAMES, "gdpo_reward_weights": [*weights, 1.0]},
        non_tensor_batch={"team_reward": team.numpy(), "local_reward": local.numpy(), "penalty": -penalty.numpy()},
        batch={"prompts": one, "attention_mask": torch.ones(len(uids), 2, dtype=torch.long)},
    )[0][:, 0]
    parts = {"team_reward": team, "local_reward": local, "penalty": penalty}
    parts |= {"team_weight": weights[0], "local_weight": weights[1]}
    # Skip cases in which the parts cancel each other, because the small remainder depends on the constants that are
    # added to deviations.
    assume(float(theirs.abs().max()) > 0.5)
    same(ours("agent_gdpo", uids, weights[0] * team + weights[1] * local - penalty, **parts), theirs, 1e-3)


def test_except_that_a_group_without_variance_is_zero_and_not_noise():
    batch = verl_batch([[9] * 8])
    assert GRPO(**batch)[0].abs().max() > 0.05
    assert (estimate("agent_grpo", batch) == 0).all()


def test_except_that_a_group_of_one_is_zero_and_not_its_raw_score():
    batch = verl_batch([[8], [1, 2]])
    theirs, ours = GRPO(**batch)[0], estimate("agent_grpo", batch)
    lone = torch.from_numpy(batch["index"] == "uid0")
    assert theirs[lone].max() == pytest.approx(0.8)
    assert (ours[lone] == 0).all()
    same(ours[~lone], theirs[~lone])


def test_verls_padding_rows_take_no_part():
    batch = verl_batch([[1, 4, 9]])
    padded = {
        "token_level_rewards": torch.cat([batch["token_level_rewards"], torch.zeros(2, 6)]),
        "response_mask": torch.cat([batch["response_mask"], torch.zeros(2, 6, dtype=torch.long)]),
        "index": np.append(batch["index"], ["pad", "pad"]),
    }
    for name in ("agent_grpo", "agent_reinforce_pp"):
        same(estimate(name, padded)[:3], estimate(name, batch))
        assert (estimate(name, padded)[3:] == 0).all()


def test_an_empty_reply_still_counts_in_its_group():
    batch = verl_batch([[1, 4, 9]])
    batch["response_mask"][0] = 0
    same(estimate("agent_grpo", batch), GRPO(**batch)[0])


def test_verls_trainer_reaches_the_estimator_by_name():
    batch = verl_batch([[1, 4, 9], [2, 3]])
    data = DataProto.from_dict(
        tensors={k: batch[k] for k in ("token_level_rewards", "response_mask")}, non_tensors={"uid": batch["index"]}
    )
    keys = [f"{uid}_{row}_0" for row, uid in enumerate(batch["index"])]
    ours, theirs = (
        compute_advantage_for_multi_trajectories(data, keys, name).batch["advantages"].clone()
        for name in ("agent_grpo", "grpo")
    )
    same(ours, theirs)


@pytest.mark.parametrize(
    ("name", "missing"), [("at_grpo", "branch"), ("agent_gigpo", "observation"), ("agent_gdpo", "team_reward")]
)
def test_an_estimator_that_needs_more_than_verl_passes_refuses(name, missing):
    with pytest.raises(DataError, match=rf"have no {missing}[^$]*\+mas="):
        estimate(name, verl_batch([[1, 2]]))


def test_a_batch_without_uids_is_refused():
    batch = verl_batch([[1, 2]])
    del batch["index"]
    with pytest.raises(DataError, match="no uid"):
        estimate("agent_grpo", batch)


def test_a_process_warns_once_that_agents_are_not_distinguished(caplog):
    verl_hook.warn_once.cache_clear()
    with caplog.at_level(logging.WARNING):
        for name in ("agent_grpo", "team_grpo", "agent_grpo"):
            estimate(name, verl_batch([[1, 2]]))
    assert [record.message for record in caplog.records if "+mas=" in record.message] == [caplog.messages[0]]


def test_registering_twice_keeps_the_first_functions():
    before = dict(core_algos.ADV_ESTIMATOR_REGISTRY)
    verl_hook.register_estimators()
    assert before == core_algos.ADV_ESTIMATOR_REGISTRY
    assert set(ESTIMATORS) <= set(before)
