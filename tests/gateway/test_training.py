"""A program is trained like a native team."""

import os

import pytest
import urllib_team

pytestmark = pytest.mark.e2e


def test_a_program_with_nothing_but_an_address_and_a_key_trains_two_policies(main_ppo, tmp_path):
    # The tiny model would rarely end a reply, and a reply that is cut is not continued.
    ending = f"sampling:{{stop_token_ids:{list(range(200))}}}".replace(" ", "")
    run = (
        "algorithm.adv_estimator=agent_grpo data.train_batch_size=4 data.max_prompt_length=128 "
        "data.max_response_length=64 data.val_max_samples=4 actor_rollout_ref.actor.ppo_mini_batch_size=4 "
        "actor_rollout_ref.rollout.n=4 trainer.test_freq=-1 trainer.val_before_train=false "
        "trainer.total_training_steps=2 mas.updates_per_step=1 +mas=program "
        f"mas.policies={{main:{{}},other:{{}}}} mas.agents={{writer:{{policy:main,{ending}}},copier:{{policy:other}}}} "
        f"mas.workflow.args={{function:'{os.path.realpath(urllib_team.HERE)}:pair',agents:[writer,copier]}}"
    )
    done = main_ppo(tmp_path / "run", *run.split())
    assert done.exit_code == 0, done.output[-6000:]
    assert len(done.steps) == 2
    for metrics in done.steps.values():
        assert metrics["session/dropped"] == metrics["session/retried"] == 0
        assert metrics["session/acts/mean"] == 3
        for policy in ("main", "other"):
            # The second turn of the writer is in the row of the first.
            assert metrics[f"policy/{policy}/rows/real"] == 16
            assert metrics[f"policy/{policy}/actor/grad_norm"] > 0
            assert metrics[f"policy/{policy}/training/rollout_probs_diff_max"] < 1e-6
