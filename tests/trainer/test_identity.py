"""A team of one is plain verl."""

from __future__ import annotations

import os
import pickle
from pathlib import Path

import pytest
import torch

pytestmark = pytest.mark.e2e
HERE = Path(__file__).parent
STEPS = 5


@pytest.fixture(scope="module")
def runs(main_ppo, tmp_path_factory):
    """verl's stock trainer with grpo, and a team of one in two modes, on the same data and tokens."""
    folder = tmp_path_factory.mktemp("identity")
    teams = {"stock": ["algorithm.adv_estimator=grpo"], "team": ["+mas=single", "algorithm.adv_estimator=agent_grpo"]}
    # Engines in a pool of their own, and no task dispatched ahead of its step.
    teams["separate"] = [
        *("+mas=single", "+mas/mode=separate_async", "algorithm.adv_estimator=agent_grpo"),
        *("++mas.pools.engines={n_gpus_per_node:1}", "++mas.policies.main.engines=engines"),
        *("trainer.v1.separate_async.num_warmup_batches=0", "trainer.v1.sampler.max_off_policy_threshold=1"),
        *("algorithm.rollout_correction.bypass_mode=true", "algorithm.rollout_correction.rollout_is=null"),
        "ray_kwargs.ray_init.num_gpus=2",
    ]
    return {name: run(main_ppo, folder / name, overrides) for name, overrides in teams.items()}


def run(main_ppo, folder, overrides):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("VERL_USE_EXTERNAL_MODULES", "same_rows")
        patch.setenv("PYTHONPATH", str(HERE), prepend=os.pathsep)
        (folder / "rows").mkdir(parents=True)
        done = main_ppo(
            folder,
            *("data.train_batch_size=4", "actor_rollout_ref.actor.ppo_mini_batch_size=4", "data.shuffle=false"),
            *("actor_rollout_ref.rollout.n=4", f"trainer.total_training_steps={STEPS}", f"trainer.save_freq={STEPS}"),
            # At the recipe's rate of 1e-2 Adam makes 1.2e-5 of the rounding of advantages.
            "actor_rollout_ref.actor.optim.lr=1e-3",
            *("trainer.test_freq=-1", f"+ray_kwargs.ray_init.runtime_env.env_vars.ROWS_DIR={folder}/rows"),
            *overrides,
        )
    assert done.exit_code == 0, done.output[-6000:]
    return done


def test_the_rows_and_their_rewards_are_the_same(runs):
    for step in range(1, STEPS + 1):
        stock, team = (
            pickle.loads((runs[name].folder / "rows" / f"train-{step}.pickle").read_bytes())
            for name in ("stock", "team")
        )
        assert stock == team
        assert len({tuple(responses) for _, responses, _ in team.values()}) > 1, "nothing was sampled"


@pytest.mark.parametrize(
    "key", ["critic/score/mean", "critic/advantages/max", "critic/advantages/min", "actor/pg_loss", "actor/grad_norm"]
)
def test_advantages_and_losses_are_the_same(runs, key):
    stock, team = runs["stock"].steps, runs["team"].steps
    for step in range(1, STEPS + 1):
        assert team[step][key] == pytest.approx(stock[step][key], abs=1e-6, rel=1e-6), step


def test_the_embedded_engines_log_probs_are_close_to_the_trainers(runs):
    assert "rollout_corr/kl" not in runs["separate"].steps[1], "log-probs were taken again"
    assert "rollout_corr/kl" in runs["team"].steps[1]


@pytest.mark.parametrize("team", ["team", "separate"])
def test_the_weights_are_the_same_after_five_steps(runs, weights_of, team):
    stock = weights_of(runs["stock"].checkpoint(STEPS) / "actor")
    team = weights_of(runs[team].checkpoint(STEPS) / "main")
    assert stock.keys() == team.keys()
    for name, weight in stock.items():
        torch.testing.assert_close(team[name], weight, atol=1e-5, rtol=0, msg=name)
