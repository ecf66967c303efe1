from __future__ import annotations

import itertools
import json
import random
from collections import Counter, defaultdict
from fractions import Fraction

import pyarrow.parquet as pq
import pytest

from verl_mas.cli import data
from verl_mas.errors import ConfigError
from verl_mas.gym.lookup import SYMBOLS, Table, check_size, draw, floor, shards_of, shuffled, successors, tasks


def test_a_shard_has_the_successors_of_its_symbols_in_order():
    table = Table(("1 d a", "2 b c"))
    assert successors(" ".join(table.shards)) == {"a": "d", "b": "a", "c": "b", "d": "c"}
    assert successors(table.shards[1]) == {"c": "b", "d": "c"} and table.path("d") == "cb"


def test_a_table_is_one_cycle_and_the_steps_of_a_question_are_in_different_shards():
    rng = random.Random(0)
    for _ in range(50):
        table, asked = draw(4, 4, rng)
        assert sorted(asked + table.path(asked, 15)) == sorted(SYMBOLS[:16])
        first, answer = table.path(asked)
        assert SYMBOLS.index(asked) // 4 != SYMBOLS.index(first) // 4
        assert answer not in (asked, first)


def test_the_splits_have_different_tables_and_the_same_seed_the_same():
    train, test = (tasks(20, 4, 4, split=split) for split in ("train", "test"))
    assert not {item.key for item in train} & {item.key for item in test}
    assert tasks(20, 4, 4, split="train") == train != tasks(20, 4, 4, split="train", seed=1)


def test_shuffled_shards_are_those_of_another_question_and_keep_the_reports():
    items = tasks(200, 4, 4, split="test")
    moved = shuffled(items)
    assert {item.source for item in moved} == {"lookup_shuffled"}
    assert [item.question for item in moved] == [item.question for item in items]
    assert sorted(item.shards for item in moved) == sorted(item.shards for item in items)
    assert not any(new.shards == old.shards for new, old in zip(moved, items, strict=True))
    # An answer read from them is right by chance only.
    right = sum(Table(item.shards).path(item.question)[-1] == item.truth for item in moved)
    assert right / len(moved) < 0.15


@pytest.mark.parametrize(("shards", "keys"), [(3, 2), (2, 3)])
def test_the_floor_is_the_success_of_the_best_guess_from_one_shard(shards, keys):
    """Over all cycles and questions, by the answers that occur with the same shard and question."""
    symbols = range(shards * keys)
    answers: dict[object, Counter[int]] = defaultdict(Counter)
    for order in itertools.permutations(symbols[1:]):
        cycle = (0, *order)
        following = dict(zip(cycle, (*order, 0), strict=True))
        for asked in symbols:
            first = following[asked]
            if asked // keys != first // keys:
                shard = tuple(following[symbol] for symbol in symbols[:keys])
                answers[asked, shard][following[first]] += 1
    best, every = (sum(map(of, answers.values())) for of in (lambda seen: max(seen.values()), Counter.total))
    assert floor(shards, keys) == Fraction(best, every)


@pytest.mark.parametrize(("shards", "keys"), [(1, 8), (4, 1), (4, 14)])
def test_a_table_without_two_shards_or_with_too_many_symbols_is_refused(shards, keys):
    with pytest.raises(ConfigError, match="--shards 4"):
        check_size(shards, keys)


def test_the_validation_file_has_the_control_as_a_source_of_its_own(tmp_path):
    made = tmp_path / "lookup"
    assert data.main(["lookup", "--out", str(made), "--train-rows", "6", "--test-rows", "3"]) == 0
    rows = pq.read_table(made / "validation.parquet").to_pylist()
    assert [row["data_source"] for row in rows] == ["lookup"] * 3 + ["lookup_shuffled"] * 3
    assert all(len(shards_of(row["extra_info"])) == 4 for row in rows)
    test = pq.read_table(made / "test.parquet").to_pylist()
    assert [row["extra_info"]["shards"] for row in test] == [row["extra_info"]["shards"] for row in rows[:3]]
    manifest = json.loads((made / "manifest.json").read_text())
    assert manifest["sources"]["lookup"]["floor"] == float(floor(4, 4)) and not (made / "model").exists()
