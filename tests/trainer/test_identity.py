"""A team of one is plain verl."""

import os
import pickle
from functools import cache
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(900)]
HERE = Path(__file__).parent
STEPS = 5
NIGHTLY = ("as_verl", "separate")
CRITIC_STEPS, WARM_UP = 12, 3
# verl initialises the head of a value model at random; full_determinism seeds it.
GAE = [
    *("algorithm.adv_estimator=gae", "algorithm.gamma=0.99", "algorithm.lam=0.9", "critic.optim.lr=1e-3"),
    *("critic.fsdp.full_determinism=true", f"trainer.critic_warmup={WARM_UP}"),
]
OF_CRITICS = [f"critic/{name}" for name in ("returns/mean", "values/mean", "vf_loss", "grad_norm", "lr")]
# Tolerances. Skipped rows change the rounding of sums, and separate engines the rounding of log-probs. Everything else
# is equal to the bit.
APART = {"team": 1e-6, "as_verl": 0.0, "separate": 1e-5}


@pytest.fixture(scope="module")
def run_of(main_ppo, letters, tmp_path_factory):
    """verl's stock trainer with grpo, and a team of one in two modes, on the same data and tokens.

    A run starts when a test first reads it. The stock trainer is started as by a user.
    """
    folder = tmp_path_factory.mktemp("identity")
    teams = {"stock": ["algorithm.adv_estimator=grpo"], "team": ["+mas=single", "algorithm.adv_estimator=agent_grpo"]}
    teams["as_verl"] = [*teams["team"], "mas.old_log_probs_every=1", "mas.skip_zero_advantage=false"]
    # Engines in a pool of their own, and no task dispatched ahead of its step.
    teams["separate"] = [
        *("+mas=single", "+mas/mode=separate_async", "algorithm.adv_estimator=agent_grpo"),
        *("++mas.pools.engines={n_gpus_per_node:1}", "++mas.policies.main.engines=engines"),
        *("trainer.v1.separate_async.num_warmup_batches=0", "trainer.v1.sampler.max_off_policy_threshold=1"),
        *("algorithm.rollout_correction.bypass_mode=true", "algorithm.rollout_correction.rollout_is=null"),
        "ray_kwargs.ray_init.num_gpus=2",
    ]
    critics = [*GAE, f"trainer.total_training_steps={CRITIC_STEPS}", f"trainer.save_freq={CRITIC_STEPS}"]
    # The critic of a team starts from the model of its policy.
    teams |= {"stock_gae": [*critics, f"critic.model.path={letters}/model"], "gae": ["+mas=single", *critics]}
    return cache(lambda name: run(main_ppo, folder / name, teams[name], alone=name == "stock"))


def run(main_ppo, folder, overrides, alone):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("VERL_USE_EXTERNAL_MODULES", "same_rows")
        patch.setenv("PYTHONPATH", str(HERE), prepend=os.pathsep)
        (folder / "rows").mkdir(parents=True)
        done = main_ppo(
            folder,
            *("data.train_batch_size=4", "actor_rollout_ref.actor.ppo_mini_batch_size=4", "data.shuffle=false"),
            *("actor_rollout_ref.rollout.n=4", f"trainer.total_training_steps={STEPS}", f"trainer.save_freq={STEPS}"),
            # At the recipe's rate of 1e-2, Adam turns rounding into differences of 1e-5.
            "actor_rollout_ref.actor.optim.lr=1e-3",
            # Rows without advantage then add nothing to the loss.
            "actor_rollout_ref.actor.entropy_coeff=0",
            *("trainer.test_freq=-1", f"+ray_kwargs.ray_init.runtime_env.env_vars.ROWS_DIR={folder}/rows"),
            *overrides,
            alone=alone,
        )
    assert done.exit_code == 0, done.output[-6000:]
    return done


def test_the_stock_trainer_trains_and_both_log_probs_agree(run_of, letters, weights_of):
    stock = run_of("stock")
    assert sorted(stock.steps) == list(range(1, STEPS + 1))
    for values in stock.steps.values():
        assert values["rollout_corr/log_ppl_abs_diff"] < 1e-5
        assert values["training/rollout_actor_probs_pearson_corr"] > 0.9999
    before, after = load_file(letters / "model/model.safetensors"), weights_of(stock.checkpoint(STEPS) / "actor")
    assert any(not torch.equal(before[name], after[name]) for name in before)


def test_the_rows_and_their_rewards_are_the_same(run_of):
    for step in range(1, STEPS + 1):
        stock, team = (
            pickle.loads((run_of(name).folder / "rows" / f"train-{step}.pickle").read_bytes())
            for name in ("stock", "team")
        )
        assert stock == team
        assert len({tuple(responses) for _, responses, _ in team.values()}) > 1, "nothing was sampled"


@pytest.mark.parametrize(
    "key", ["critic/score/mean", "critic/advantages/max", "critic/advantages/min", "actor/pg_loss", "actor/grad_norm"]
)
def test_advantages_and_losses_are_the_same(run_of, key):
    stock, team = run_of("stock").steps, run_of("team").steps
    for step in range(1, STEPS + 1):
        assert team[step][key] == pytest.approx(stock[step][key], abs=1e-6, rel=1e-6), step


def test_old_log_probs_are_computed_in_the_first_two_steps_only_and_rows_without_advantage_are_skipped(run_of):
    steps = run_of("team").steps
    assert [step for step, values in steps.items() if "rollout_corr/kl" in values] == [1, 2]
    assert sum(values["policy/main/rows/skipped"] for values in steps.values()) > 0


# tests/trainer/modes/test_separate.py runs the separate mode in CI.
@pytest.mark.parametrize("team", ["team", *(pytest.param(name, marks=pytest.mark.nightly) for name in NIGHTLY)])
def test_the_weights_are_the_same_after_five_steps(run_of, weights_of, team):
    stock = weights_of(run_of("stock").checkpoint(STEPS) / "actor")
    trained = weights_of(run_of(team).checkpoint(STEPS) / "main")
    assert stock.keys() == trained.keys()
    for name, weight in stock.items():
        torch.testing.assert_close(trained[name], weight, atol=APART[team], rtol=0, msg=name)


@pytest.mark.nightly
def test_one_agent_with_gae_trains_policy_and_critic_as_the_stock_trainer(run_of, weights_of):
    stock, team = run_of("stock_gae"), run_of("gae")
    for step in range(1, CRITIC_STEPS + 1):
        rows = ((run.folder / "rows" / f"train-{step}.pickle").read_bytes() for run in (stock, team))
        assert len({repr(pickle.loads(each)) for each in rows}) == 1
        trained = ["actor/grad_norm", "actor/pg_loss"] if step >= WARM_UP else []
        for key in (*OF_CRITICS, *trained):
            assert team.steps[step][key] == pytest.approx(stock.steps[step][key], abs=1e-6, rel=1e-6), (step, key)
        assert bool(trained) == ("actor/grad_norm" in team.steps[step]) == bool(team.steps[step]["policy/main/updated"])
    for verls, ours in (("actor", "main"), ("critic", "main/critic")):
        before, after = (
            weights_of(stock.checkpoint(CRITIC_STEPS) / verls),
            weights_of(team.checkpoint(CRITIC_STEPS) / ours),
        )
        torch.testing.assert_close(after, before, atol=2e-6, rtol=0)
