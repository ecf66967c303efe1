from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tensordict import TensorDict
from tensordict.tensorclass import NonTensorData, NonTensorStack
from transfer_queue import KVBatchMeta
from verl.trainer.ppo.v1.utils import MetricsAggregator

from verl_mas.errors import UpdateFailed
from verl_mas.run_folder.checkpoints import Checkpoint
from verl_mas.trainer import metrics as of_step
from verl_mas.trainer.step import Columns, PolicyRows
from verl_mas.verl_ import data_plane
from verl_mas.verl_.row import RowKey


def rows_of(real, padding, **metrics):
    tags = [{"is_padding": i >= real} for i in range(real + padding)]
    keys = [f"1-{i}_0_0" for i in range(len(tags))]
    return PolicyRows(KVBatchMeta(partition_id="train", keys=keys, tags=tags), metrics=metrics)


def test_names_that_look_like_reductions_reach_the_logger_unchanged():
    parts = {"mini": rows_of(3, 1, **{"actor/grad_norm": 2.0}), "max_sum": rows_of(2, 0, **{"actor/grad_norm": 4.0})}
    aggregator = MetricsAggregator()
    aggregator.add_step_metrics(of_step.policy_metrics(parts, ["mini", "max_sum"]), sample_count=5)
    found = aggregator.get_aggregated_metrics()
    assert found["policy/mini/actor/grad_norm"] == 2.0
    assert found["policy/max_sum/actor/grad_norm"] == 4.0
    assert found["policy/mini/rows/padding"] == 1


def test_a_policy_without_rows_is_logged_as_not_updated():
    found = of_step.policy_metrics({"a": rows_of(1, 0)}, ["a", "b"])
    assert (found["policy/a/updated"], found["policy/b/updated"], found["policy/b/rows/real"]) == (1, 0, 0)


def test_verls_metrics_of_the_only_policy_are_logged_once_and_under_verls_names():
    own = {"actor/lr": 0.1, "perf/mfu/actor": 0.5, "rows/skipped": 3, "timing/update": 4.0}
    of_policy = {"rows/real": 1, "rows/padding": 0, "rows/skipped": 3, "updated": 1}
    expected = {"actor/lr": 0.1, "perf/mfu/actor": 0.5} | {f"policy/main/{key}": of_policy[key] for key in of_policy}
    assert of_step.policy_metrics({"main": rows_of(1, 0, **own)}, ["main"]) == expected


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
    found = of_step.agent_metrics(columns, advantages, {"advantage/solver/uniform": 0.25})
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
    line = of_step.step_line(7, metrics, {"gen": 1.26, "update_actor": 0.5, "testing": 3}, ["a", "b"])
    assert line == "step 7 | rollout 1.3s, update 0.5s, validation 3.0s | a 16 rows (3 padding), b 0 rows | score 0.250"


def test_a_result_has_the_mean_of_each_source_and_no_interval():
    metrics = {"val-core/sums/acc/mean@4": 0.5, "val-core/sums/mean@4/low": 0.4, "val-aux/sums/reward/mean@4": 1.0}
    assert of_step.result_of({**metrics, "critic/score/mean": 0.25}) == " | sums/acc/mean@4 0.500"
    measured = of_step.result_of({**metrics, "val-aux/kuhn_poker/exploitability/mean@1": 0.336})
    assert measured == " | sums/acc/mean@4 0.500 | kuhn_poker/exploitability/mean@1 0.336"


def test_engine_and_trainer_are_compared_by_agent_on_what_the_present_weights_sampled(tags):
    # Tool tokens are masked out, the third row was sampled one update earlier, and the last row is padding.
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
    found = of_step.log_prob_metrics({"p": PolicyRows(batch, data=TensorDict(nested, 4))}, {"p": 0.1}, step=5)
    solver = {"mean": 0.75, "max": 1.0, "tokens": 2, "limit": 0.1}
    judge = {"mean": 0.25, "max": 0.25, "tokens": 1, "limit": 0.1}
    expected = {"solver": solver, "judge": judge}
    assert found == {f"agent/{name}/log_probs/{key}": own[key] for name, own in expected.items() for key in own}
    assert of_step.log_prob_metrics({"p": PolicyRows(batch, data=TensorDict({}, 4))}, {"p": 0.1}, step=5) == {}


STEP = 6  # this step trains weights of version 5


def test_rows_are_counted_by_their_oldest_token(tags):
    versions = [(5, 5), (4, 5), (4, 4), (1, 5)]
    rows = [tags("solver", min_global_steps=low, max_global_steps=high) for low, high in versions]
    extras = [{}, {"aborts": 1}, {"aborts": 2}, {}]
    assert of_step.row_metrics(rows, extras, STEP) == {
        "staleness/mean": 1.5,
        "staleness/max": 4.0,
        "staleness/0/rows": 0.25,
        "staleness/1/rows": 0.5,
        "staleness/4/rows": 0.25,
        "staleness/mixed_versions": 0.5,
        "staleness/aborted": 0.5,
        # The third row was aborted before its first token, or continued under the same weights.
        "staleness/continued": 0.25,
    }


def test_high_staleness_is_one_class_and_an_engine_that_counts_no_versions_has_none(tags):
    assert of_step.row_metrics([tags("solver", min_global_steps=None, max_global_steps=None)], [{}], STEP) == {}
    rows = [tags("solver", min_global_steps=low, max_global_steps=low) for low in (0, 10, 17)]
    found = of_step.row_metrics(rows, [{}] * 3, 30)
    assert found["staleness/8/rows"] == 1.0 and found["staleness/max"] == 29.0


@pytest.fixture
def part(monkeypatch, tags):
    """Two rows and padding. The first row has tokens of versions 4 and 5 around a tool token; one is rejected."""
    values = [tags("solver", min_global_steps=low, max_global_steps=high).as_dict() for low, high in ((4, 5), (5, 5))]
    keys = ["3-0_0_0", "3-0_1_0", "3-0_1_0_pad"]
    extras = {keys[0]: {"aborts": 1}, keys[1]: {}}
    monkeypatch.setattr(
        data_plane,
        "read",
        lambda rows, _: TensorDict({"extra_fields": NonTensorStack(*[NonTensorData(extras[k]) for k in rows.keys])}, 2),
    )
    masks = [torch.tensor(mask) for mask in ([1, 0, 0, 1], [1, 1], [0])]
    data = {"response_mask": torch.nested.as_nested_tensor(masks, layout=torch.jagged)}
    batch = KVBatchMeta(partition_id="train", keys=keys, tags=[*values, {**values[0], "is_padding": True}])
    return PolicyRows(batch, data=TensorDict(data, 3))


def test_padding_is_in_no_metric_and_sessions_have_mixed_versions_across_policies(part):
    found = of_step.staleness_metrics({"solver": part}, STEP)
    own = {key.removeprefix("policy/solver/staleness/"): value for key, value in found.items()}
    assert own["mean"] == own["aborted"] == own["continued"] == found["session/mixed_versions"] == 0.5


def test_tokens_that_are_neither_trained_nor_waiting_are_lost(part):
    count = of_step.TokenCount()
    tags = {"trainable": True, "response_len": 7}
    left = {"3-0_0_0": tags, "4-0_0_0": tags, "4-0_0_1": {**tags, "trainable": False}, "5-0": {"status": "running"}}
    first = count.add(20, {"solver": part}, left, part.batch)
    expected = {"sampled": 20, "trained": 4, "waiting": 7, "lost": 9}
    assert first == {f"async/tokens/{name}": value for name, value in expected.items()}
    assert count.add(5, {}, {}, part.batch)["async/tokens/lost"] == 21
    resumed, kept = of_step.TokenCount(), {"trainable": True, "response_len": 4}
    resumed.keep([kept, {"trainable": False, "response_len": 9}, {"status": "finished"}])
    assert resumed.add(0, {"solver": part}, {}, part.batch)["async/tokens/lost"] == 0, "a checkpoint kept them"


# -- the end of a run whose engine and trainer disagree about log-probs --

FLOAT32, BFLOAT16 = 1e-3, 0.1


def after(first: dict[str, float]) -> Checkpoint:
    return Checkpoint(Path(), 7, {of_step.FIRST: first})


def distances(agent: str, mean: float, limit: float, tokens: int = 64) -> dict[str, float]:
    values = {"mean": mean, "limit": limit, "tokens": tokens}
    return {f"agent/{agent}/log_probs/{key}": value for key, value in values.items()}


def ended(
    means: list[float],
    limit: float,
    first: dict[str, float] | None = None,
    *,
    corrected: bool = False,
    tokens: int = 64,
) -> int:
    """Return the step in which a run with these mean distances ends; 0 if it does not end."""
    agreement = of_step.Agreement(after(first) if first else None, corrected=corrected)
    for step, mean in enumerate(means, start=1):
        try:
            agreement.add(distances("solver", mean, limit, tokens), step)
        except UpdateFailed:
            return step
    return 0


def test_an_engine_that_keeps_the_first_weights_ends_the_run_at_step_2():
    assert ended([1e-7, 0.02, 0.04], FLOAT32) == 2
    assert ended([0.03, 0.2], BFLOAT16) == 2
    assert ended([0.03, 0.2], BFLOAT16, tokens=63) == 0, "a single token may be far apart in bfloat16"


def test_small_updates_are_found_when_they_have_added_up():
    """Rounding hides one update with a small learning rate. An engine with the first weights falls behind with each
    update."""
    assert ended([0.02 + 0.01 * step for step in range(20)], BFLOAT16) == 12


def test_after_a_resume_the_first_step_is_compared_with_the_first_of_the_run():
    assert ended([0.3], BFLOAT16, first={"solver": 0.02}) == 1
    assert ended([0.3], BFLOAT16) == 0, "nothing to compare with"


def test_one_step_in_a_long_run_does_not_end_it_and_neither_does_a_drift_that_is_corrected():
    assert ended([0.02, 0.02, 0.2, 0.2, 0.02, 0.2], BFLOAT16) == 0
    assert ended([0.02, 0.02, 0.2, 0.2, 0.2], BFLOAT16) == 5
    assert ended([0.02, 0.02, 0.2, 0.2, 0.2], BFLOAT16, corrected=True) == 0
    assert ended([0.02, 0.2], BFLOAT16, corrected=True) == 2


@given(st.lists(st.floats(0.0, BFLOAT16), min_size=1, max_size=9))
def test_rounding_never_ends_a_run(means):
    assert ended(means, BFLOAT16) == 0


@given(st.floats(0.0, 5.0), st.lists(st.floats(0.34, 3.0), min_size=1, max_size=9))
def test_what_sampling_parameters_change_in_every_step_never_ends_a_run(distance, factors):
    """A penalty, top_p, or weights that the engine quantises."""
    assert ended([distance, *(distance * min(factor, 2.99) for factor in factors)], FLOAT32) == 0


def test_the_error_names_step_agent_and_distances():
    agreement = of_step.Agreement(after({"solver": 0.02}))
    with pytest.raises(UpdateFailed, match=r"in step 8 .* differ by 0\.3 .* agent solver, and by 0\.02 at first"):
        agreement.add(distances("solver", 0.3, BFLOAT16), step=8)


def test_agents_are_compared_with_themselves():
    agreement = of_step.Agreement()
    for step in (1, 2, 3):
        for name, mean in (("greedy", 0.4), ("plain", 1e-7)):
            agreement.add(distances(name, mean, FLOAT32), step)
    assert agreement.first == {"greedy": 0.4, "plain": 1e-7}
