"""A world trains a team: two players on two policies, whose candidates continue in copies."""

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from toy_worlds import TOY

pytestmark = pytest.mark.e2e


def test_candidates_of_two_policies_continue_in_processes(main_ppo, tmp_path):
    world = f"world:'{TOY}/turns',options:{{steps:4}},text:compact,continuations:1,runs_in:process"
    run = (
        "algorithm.adv_estimator=at_grpo data.train_batch_size=4 data.max_prompt_length=128 data.max_response_length=1 "
        "data.val_max_samples=4 actor_rollout_ref.actor.ppo_mini_batch_size=4 actor_rollout_ref.rollout.n=1 "
        "trainer.test_freq=-1 trainer.val_before_train=false trainer.total_training_steps=2 mas.updates_per_step=1 "
        f"+mas=world mas.branch.k=4 mas.workflow.args={{{world}}} mas.policies={{main:{{}},other:{{}}}} "
        "mas.agents={left:{policy:main},right:{policy:other}} "
        f"data.train_files={tmp_path}/rows.parquet data.val_files={tmp_path}/rows.parquet"
    )
    prompt = [{"role": "user", "content": "Play."}]
    rows = [{"data_source": TOY, "prompt": prompt, "extra_info": {"index": n, "world_seed": n}} for n in range(16)]
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "rows.parquet")
    done = main_ppo(tmp_path / "run", *run.split())
    assert done.exit_code == 0, done.output[-6000:]
    assert len(done.steps) == 2
    for metrics in done.steps.values():
        assert metrics["session/dropped"] == metrics["session/retried"] == 0
        assert metrics["session/acts/mean"] == 16
        for policy, agent in (("main", "left"), ("other", "right")):
            assert metrics[f"policy/{policy}/rows/real"] == metrics[f"agent/{agent}/acts"] == 32
            assert metrics[f"policy/{policy}/actor/grad_norm"] > 0
