from __future__ import annotations

import pytest
import torch
from tensordict import TensorDict
from transfer_queue import KVBatchMeta
from verl.trainer.ppo.v1.utils import MetricsAggregator

from verl_mas.trainer.metrics import agent_metrics, log_prob_metrics, policy_metrics, result_of, step_line
from verl_mas.trainer.step import Columns, PolicyRows
from verl_mas.verl_.row import RowKey


def part(rows, padding, **metrics):
    tags = [{"is_padding": i >= rows} for i in range(rows + padding)]
    keys = [f"1-{i}_0_0" for i in range(len(tags))]
    return PolicyRows(KVBatchMeta(partition_id="train", keys=keys, tags=tags), metrics=metrics)


def test_names_that_look_like_reductions_reach_the_logger_unchanged():
    parts = {"mini": part(3, 1, **{"actor/grad_norm": 2.0}), "max_sum": part(2, 0, **{"actor/grad_norm": 4.0})}
    aggregator = MetricsAggregator()
    aggregator.add_step_metrics(policy_metrics(parts, ["mini", "max_sum"]), sample_count=5)
    found = aggregator.get_aggregated_metrics()
    assert found["policy/mini/actor/grad_norm"] == 2.0
    assert found["policy/max_sum/actor/grad_norm"] == 4.0
    assert found["policy/mini/rows/padding"] == 1


def test_a_policy_without_rows_is_logged_as_not_updated():
    found = policy_metrics({"a": part(1, 0)}, ["a", "b"])
    assert (found["policy/a/updated"], found["policy/b/updated"], found["policy/b/rows/real"]) == (1, 0, 0)


def test_verls_metrics_of_the_only_policy_are_logged_once_and_under_verls_names():
    own = {"actor/lr": 0.1, "perf/mfu/actor": 0.5, "rows/skipped": 3, "timing/update": 4.0, "adapter/norm": 2.0}
    of_policy = {"adapter/norm": 2.0, "rows/real": 1, "rows/padding": 0, "rows/skipped": 3, "updated": 1}
    expected = {"actor/lr": 0.1, "perf/mfu/actor": 0.5} | {f"policy/main/{key}": of_policy[key] for key in of_policy}
    assert policy_metrics({"main": part(1, 0, **own)}, ["main"]) == expected


def test_each_agent_is_described_by_its_own_rows(tags):
    rows = [
        tags("solver", team_reward=1.0, local_reward=0.5, penalty=0.25),
        tags("verifier", response_len=8, team_reward=1.0),
        tags("solver", malformed=True),
        tags("solver", prompt_len=40),
    ]
    advantages = torch.tensor([1.0, 0.0, -1.0, 0.0])
    keys = [RowKey.parse(key) for key in ("1-0_0_0", "1-0_0_1", "1-0_1_0", "1-1_0_0")]
    columns = Columns(keys, rows, torch.tensor([1.0, 0.5, 0.0, 0.0]), masks=[])
    found = agent_metrics(columns, advantages, {"advantage/solver/uniform": 0.25})
    expected = {
        "reward/team": 1 / 3,
        "reward/local": 1 / 6,
        "reward/penalty": 1 / 12,
        "reward/score": 1 / 3,
        "length/prompt": 20,
        "malformed": 1 / 3,
        "acts": 3,
        "acts_per_session": 1.0,
        "advantage/zero": 1 / 3,
        "group/uniform": 0.25,
    }
    assert {name: found[f"agent/solver/{name}"] for name in expected} == pytest.approx(expected)
    assert found["agent/verifier/acts"] == 1 and found["agent/verifier/length/response"] == 8


def test_a_step_reads_as_one_line():
    metrics = {"policy/a/rows/real": 16, "policy/a/rows/padding": 3, "policy/b/rows/real": 0, "critic/score/mean": 0.25}
    line = step_line(7, metrics, {"gen": 1.26, "update_actor": 0.5, "testing": 3}, ["a", "b"])
    assert line == "step 7 | rollout 1.3s, update 0.5s, validation 3.0s | a 16 rows (3 padding), b 0 rows | score 0.250"


def test_a_result_has_the_mean_of_each_source_and_no_interval():
    metrics = {"val-core/sums/acc/mean@4": 0.5, "val-core/sums/mean@4/low": 0.4, "val-aux/sums/reward/mean@4": 1.0}
    assert result_of({**metrics, "critic/score/mean": 0.25}) == " | sums/acc/mean@4 0.500"
    measured = result_of({**metrics, "val-aux/kuhn_poker/exploitability/mean@1": 0.336})
    assert measured == " | sums/acc/mean@4 0.500 | kuhn_poker/exploitability/mean@1 0.336"


def test_engine_and_trainer_are_compared_by_agent_on_what_the_present_weights_sampled(tags):
    # A token of a tool is in no mask, the third row was sampled one update before, the last is padding.
    rows = [tags("solver", min_global_steps=None), tags("judge", min_global_steps=4), tags("judge", min_global_steps=3)]
    values = [*(row.as_dict() for row in rows), tags("judge", min_global_steps=4).as_dict() | {"is_padding": True}]
    columns = {
        "loss_mask": [[1, 0, 1], [1], [1], [1]],
        "old_log_probs": [[-1.0, 9.0, -2.0], [-1.5], [9.0], [9.0]],
        "rollout_log_probs": [[-1.5, 0.0, -1.0], [-1.25], [0.0], [0.0]],
    }
    nested = {
        name: torch.nested.as_nested_tensor([torch.tensor(row) for row in column], layout=torch.jagged)
        for name, column in columns.items()
    }
    batch = KVBatchMeta(partition_id="train", keys=[f"5-{i}_0_0" for i in range(4)], tags=values)
    found = log_prob_metrics({"p": PolicyRows(batch, data=TensorDict(nested, 4))}, {"p": 0.1}, step=5)
    solver = {"mean": 0.75, "max": 1.0, "tokens": 2, "limit": 0.1}
    judge = {"mean": 0.25, "max": 0.25, "tokens": 1, "limit": 0.1}
    expected = {"solver": solver, "judge": judge}
    assert found == {f"agent/{name}/log_probs/{key}": own[key] for name, own in expected.items() for key in own}
    assert log_prob_metrics({"p": PolicyRows(batch, data=TensorDict({}, 4))}, {"p": 0.1}, step=5) == {}
