import math
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st
from omegaconf import OmegaConf
from transfer_queue import KVBatchMeta

from verl_mas.errors import DataError
from verl_mas.trainer.batching import by_policy, fixed_sizes, plan, side_by_side, spread_padding
from verl_mas.verl_.data_plane import join, select


def batch(*policies: str) -> KVBatchMeta:
    keys, tags = [f"1-{i}_0_0" for i in range(len(policies))], [{"policy": policy} for policy in policies]
    return KVBatchMeta(keys, tags, "train", fields=["prompts"], extra_info={"temperature": 1.0})


def test_rows_are_split_by_tag_and_put_together_again_and_one_without_a_known_policy_is_refused():
    rows = batch("a", "b", "a")
    split = by_policy(rows.tags, ["a", "b", "c"])
    assert split == {"a": [0, 2], "b": [1], "c": []}
    parts = [select(rows, split[name]) for name in ("a", "b")]
    assert parts[0].keys == ["1-0_0_0", "1-2_0_0"]
    assert parts[0].fields == ["prompts"] and parts[0].extra_info == {"temperature": 1.0}
    assert sorted(join(parts).keys) == rows.keys
    with pytest.raises(DataError, match="row 1 is tagged with policy 'x'"):
        by_policy(batch("a", "x").tags, ["a"])


@given(st.integers(1, 5000), st.integers(1, 8), st.integers(1, 16), st.integers(1, 8), st.integers(1, 8))
def test_padding_is_less_than_what_ranks_optimiser_steps_and_fixed_micro_batches_divide(
    rows, updates, ranks, update, scoring
):
    made = plan(rows, updates, ranks, update, scoring)
    padding = -rows % made.multiple
    of_a_rank, rest = divmod(rows + padding, ranks)
    assert rest == 0 and of_a_rank % scoring == 0
    assert of_a_rank % made.updates == 0 and of_a_rank // made.updates % update == 0
    assert padding < ranks * math.lcm(made.updates * update, scoring)
    assert 1 <= made.updates <= updates


@pytest.mark.parametrize(
    ("settings", "reference", "sizes"),
    [
        ({}, False, (4, 5)),
        ({"actor": {"use_dynamic_bsz": True}}, True, (1, 6)),
        ({"actor": {"use_dynamic_bsz": True}}, False, (1, 1)),
        ({}, True, (4, 30)),
        ({"ref": {"log_prob_use_dynamic_bsz": True}}, True, (4, 5)),
    ],
)
def test_the_sizes_are_those_of_the_models_that_are_not_filled_by_tokens(settings, reference, sizes):
    section = {
        "actor": {"use_dynamic_bsz": False, "ppo_micro_batch_size_per_gpu": 4},
        "rollout": {"log_prob_micro_batch_size_per_gpu": 5},
        "ref": {"log_prob_use_dynamic_bsz": False, "log_prob_micro_batch_size_per_gpu": 6},
    }
    made = OmegaConf.merge(section, settings)
    assert fixed_sizes(made, reference=reference) == sizes


def test_every_micro_batch_has_its_share_of_real_rows_which_keep_their_order():
    tags = [{"is_padding": i in (1, 2)} for i in range(6)]
    assert [i for i in spread_padding(tags, 1, 2) if i not in (1, 2)] == [0, 3, 4, 5]
    tags = [{"is_padding": i >= 5} for i in range(20)]
    order = spread_padding(tags, 1, 1)
    assert [i for i in order if i < 5] == [0, 1, 2, 3, 4]
    assert all(sum(i < 5 for i in order[begin : begin + 4]) == 1 for begin in range(0, 20, 4))


@given(st.data())
def test_every_optimiser_step_has_a_real_row_and_every_rank_keeps_its_rows(data):
    rows = data.draw(st.integers(1, 60))
    made = plan(rows, data.draw(st.integers(1, 6)), data.draw(st.integers(1, 4)))
    ranks, padding = made.multiple // made.updates, -rows % made.multiple
    total = rows + padding
    real = data.draw(st.permutations([True] * rows + [False] * padding))
    tags = [{"is_padding": not r} for r in real]
    order = spread_padding(tags, ranks, made.updates)
    chunk, size = total // ranks, total // made.multiple
    steps = [0] * made.updates
    for rank in range(ranks):
        assert sorted(order[rank * chunk : (rank + 1) * chunk]) == list(range(rank * chunk, (rank + 1) * chunk))
        for step in range(made.updates):
            begin = rank * chunk + step * size
            steps[step] += sum(real[i] for i in order[begin : begin + size])
    assert min(steps) >= 1
    assert max(steps) - min(steps) <= 1


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(1, 100)), min_size=1, max_size=24), st.integers(1, 4))
def test_rows_of_a_task_are_on_one_rank_where_there_is_room(rows, ranks):
    rows = rows * ranks
    groups, lengths = zip(*rows, strict=True)
    order = side_by_side(groups, lengths, ranks)
    assert sorted(order) == list(range(len(rows)))
    size = len(rows) // ranks
    parts = [[groups[row] for row in order[rank * size :][:size]] for rank in range(ranks)]
    for part in parts:
        assert sum(one != other for one, other in pairwise(part)) == len(set(part)) - 1, "side by side"
    split = [group for group in set(groups) if sum(group in part for part in parts) > 1]
    assert len(split) <= ranks * (ranks - 1)


def test_ranks_get_tasks_of_equal_length_together():
    order = side_by_side([0, 0, 1, 1, 2, 2, 3, 3], [9, 9, 1, 1, 8, 8, 2, 2], 2)
    assert {frozenset(order[:4]), frozenset(order[4:])} == {frozenset([0, 1, 2, 3]), frozenset([4, 5, 6, 7])}
