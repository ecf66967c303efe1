"""Critics of policies, in real runs: one agent is verl's stock `gae`; two policies resume with theirs."""

from __future__ import annotations

import os
import pickle
from functools import cache
from pathlib import Path

import pytest
import torch

pytestmark = [pytest.mark.e2e, pytest.mark.nightly, pytest.mark.timeout(900)]
HERE = Path(__file__).parent
STEPS, WARM_UP = 12, 3
GAE = [
    *("algorithm.adv_estimator=gae", "algorithm.gamma=0.99", "algorithm.lam=0.9", "critic.optim.lr=1e-3"),
    # verl draws the new head of a value model; this seeds it.
    *("critic.fsdp.full_determinism=true", f"trainer.critic_warmup={WARM_UP}"),
]
# verl's names of an actor's and a critic's metrics, and how far apart rounding makes them.
SAME = {
    **dict.fromkeys(("critic/score/mean", "critic/returns/mean", "critic/values/mean", "critic/vf_loss"), 1e-6),
    **dict.fromkeys(("critic/grad_norm", "critic/lr", "actor/grad_norm", "actor/pg_loss"), 1e-6),
    **dict.fromkeys(("critic/advantages/max", "critic/advantages/min"), 1e-5),
}


@pytest.fixture(scope="module")
def run_of(main_ppo, letters, tmp_path_factory):
    """verl's stock trainer and a team of one, on the same data and tokens."""
    folder = tmp_path_factory.mktemp("critics")
    # The critic of a team starts from the model of its policy.
    runs = {"stock": [f"critic.model.path={letters}/model"], "team": ["+mas=single"]}

    def run(name):
        (folder / name / "rows").mkdir(parents=True)
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("VERL_USE_EXTERNAL_MODULES", "same_rows")
            patch.setenv("PYTHONPATH", str(HERE), prepend=os.pathsep)
            done = main_ppo(
                folder / name,
                *("data.train_batch_size=4", "actor_rollout_ref.actor.ppo_mini_batch_size=4", "data.shuffle=false"),
                *("actor_rollout_ref.rollout.n=4", f"trainer.total_training_steps={STEPS}"),
                *("actor_rollout_ref.actor.optim.lr=1e-3", "actor_rollout_ref.actor.entropy_coeff=0"),
                *(f"trainer.save_freq={STEPS}", "trainer.test_freq=-1"),
                f"+ray_kwargs.ray_init.runtime_env.env_vars.ROWS_DIR={folder / name}/rows",
                *GAE,
                *runs[name],
            )
        assert done.exit_code == 0, done.output[-6000:]
        return done

    return cache(run)


def test_one_agent_trains_policy_and_critic_as_verls_stock_trainer(run_of, weights_of):
    stock, team = run_of("stock"), run_of("team")
    for step in range(1, STEPS + 1):
        rows = (run.folder / "rows" / f"train-{step}.pickle" for run in (stock, team))
        same, other = (pickle.loads(path.read_bytes()) for path in rows)
        assert same == other
        found = {key for key in SAME if key in stock.steps[step]}
        assert ("actor/grad_norm" in found) == (step >= WARM_UP)
        for key in found:
            assert team.steps[step][key] == pytest.approx(stock.steps[step][key], abs=SAME[key], rel=SAME[key]), key
        assert team.steps[step]["policy/main/updated"] == float(step >= WARM_UP)
    for verls, ours in (("actor", "main"), ("critic", "main/critic")):
        before, after = weights_of(stock.checkpoint(STEPS) / verls), weights_of(team.checkpoint(STEPS) / ours)
        assert before.keys() == after.keys()
        for name, weight in before.items():
            torch.testing.assert_close(after[name], weight, atol=2e-6, rtol=0, msg=f"{ours}: {name}")


def test_two_policies_resume_with_their_critics_bit_for_bit(train_team, weights_of, tmp_path):
    overrides = [
        "mas.policies={mini:{},other:{pool:fast}} mas.pools={fast:{n_gpus_per_node:1}} ray_kwargs.ray_init.num_gpus=2",
        "mas.agents={writer:{policy:mini},earlier:{policy:mini},copier:{policy:other}}",
        "actor_rollout_ref.rollout.full_determinism=true trainer.total_training_steps=4 trainer.save_freq=2",
        "+mas.policies.other.overrides.actor.strategy=fsdp",
        *GAE,
    ]
    unbroken = train_team(tmp_path / "unbroken", "Rehearsed", *overrides)
    first = unbroken.checkpoint(2)
    resume = f"trainer.resume_mode=resume_path trainer.resume_from_path={first}"
    resumed = train_team(tmp_path / "resumed", "Rehearsed", *overrides, resume)
    for step, metrics in unbroken.steps.items():
        assert ("policy/mini/actor/grad_norm" in metrics) == (step >= WARM_UP)
        assert metrics["policy/mini/rows/real"] == 2 * metrics["policy/other/rows/real"] == 32
    for policy in ("mini", "other"):
        for part in (policy, f"{policy}/critic"):
            kept, last, again = map(
                weights_of, (first / part, unbroken.checkpoint(4) / part, resumed.checkpoint(4) / part)
            )
            assert any(not torch.equal(kept[name], last[name]) for name in last)
            assert all(torch.equal(last[name], again[name]) for name in last), part
    critics = [weights_of(unbroken.checkpoint(4) / policy / "critic") for policy in ("mini", "other")]
    assert any(not torch.equal(critics[0][name], critics[1][name]) for name in critics[0]), "each has its own"
