from __future__ import annotations

import pytest
import torch
from transfer_queue import KVBatchMeta
from verl.trainer.ppo.v1.utils import MetricsAggregator

from verl_mas.row import RowKey
from verl_mas.trainer.metrics import agent_metrics, policy_metrics, step_line
from verl_mas.trainer.step import Columns, PolicyRows


def part(rows, padding, **metrics):
    tags = [{"is_padding": i >= rows} for i in range(rows + padding)]
    keys = [f"1-{i}_0_0" for i in range(len(tags))]
    return PolicyRows(KVBatchMeta(partition_id="train", keys=keys, tags=tags), metrics=metrics)


def test_names_that_look_like_reductions_reach_the_logger_unchanged():
    parts = {"mini": part(3, 1, **{"actor/grad_norm": 2.0}), "max_sum": part(2, 0, **{"actor/grad_norm": 4.0})}
    aggregator = MetricsAggregator()
    aggregator.add_step_metrics(policy_metrics(parts, ["mini", "max_sum"]), sample_count=5)
    found = aggregator.get_aggregated_metrics()
    assert found["mas/mini/actor/grad_norm"] == 2.0
    assert found["mas/max_sum/actor/grad_norm"] == 4.0
    assert found["mas/mini/rows/padding"] == 1


def test_a_policy_without_rows_is_logged_as_not_updated():
    found = policy_metrics({"a": part(1, 0)}, ["a", "b"])
    assert (found["mas/a/updated"], found["mas/b/updated"], found["mas/b/rows/real"]) == (1, 0, 0)


def test_a_team_of_one_policy_keeps_verls_own_names_too():
    found = policy_metrics({"main": part(1, 0, **{"actor/lr": 0.1, "rows/skipped": 3})}, ["main"])
    assert found["actor/lr"] == found["mas/main/actor/lr"] == 0.1
    assert "rows/skipped" not in found


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
    parts = {part: found[f"mas/solver/reward/{part}"] for part in ("team", "local", "penalty")}
    assert parts == pytest.approx({"team": 1 / 3, "local": 1 / 6, "penalty": 1 / 12})
    assert found["mas/solver/length/prompt"] == 20
    assert found["mas/solver/reward/score"] == pytest.approx(1 / 3)
    assert found["mas/solver/malformed"] == pytest.approx(1 / 3)
    assert found["mas/solver/acts"] == 3 and found["mas/verifier/acts"] == 1
    assert found["mas/verifier/length/response"] == 8
    assert found["mas/solver/advantage/zero"] == pytest.approx(1 / 3)
    assert found["mas/solver/group/uniform"] == 0.25
    assert found["mas/solver/acts_per_session"] == 1.0


def test_a_step_reads_as_one_line():
    metrics = {"mas/a/rows/real": 16, "mas/a/rows/padding": 3, "mas/b/rows/real": 0, "critic/score/mean": 0.25}
    line = step_line(7, metrics, {"gen": 1.26, "update_actor": 0.5}, ["a", "b"])
    assert line == "step 7 | rollout 1.3s, update 0.5s | a 16 rows (3 padding), b 0 rows | score 0.250"
