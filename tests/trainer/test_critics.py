"""Two policies with their critics: trained, and resumed."""

import pytest
import torch

pytestmark = [pytest.mark.e2e, pytest.mark.nightly, pytest.mark.timeout(900)]
OVERRIDES = (
    "mas.policies={mini:{},other:{pool:fast}} mas.pools={fast:{n_gpus_per_node:1}} ray_kwargs.ray_init.num_gpus=2",
    "mas.agents={writer:{policy:mini},earlier:{policy:mini},copier:{policy:other}} trainer.critic_warmup=3",
    "algorithm.adv_estimator=gae critic.optim.lr=1e-3",
    "actor_rollout_ref.rollout.full_determinism=true trainer.total_training_steps=4 trainer.save_freq=2",
)


def test_each_policy_has_a_critic_and_resumes_with_it_bit_for_bit(train_team, weights_of, tmp_path):
    unbroken = train_team(tmp_path / "unbroken", "Rehearsed", *OVERRIDES)
    first = unbroken.checkpoint(2)
    resume = f"trainer.resume_mode=resume_path trainer.resume_from_path={first}"
    resumed = train_team(tmp_path / "resumed", "Rehearsed", *OVERRIDES, resume)
    assert unbroken.steps[4]["policy/mini/rows/real"] == 2 * unbroken.steps[4]["policy/other/rows/real"] == 32
    weights = {}
    for part in ("mini", "other", "mini/critic", "other/critic"):
        kept, last, again = (
            weights_of(folder / part) for folder in (first, *(r.checkpoint(4) for r in (unbroken, resumed)))
        )
        assert any(not torch.equal(kept[name], last[name]) for name in last)
        torch.testing.assert_close(again, last, atol=0, rtol=0)
        weights[part] = last["score.weight"] if "critic" in part else None
    assert not torch.equal(weights["mini/critic"], weights["other/critic"])
