from __future__ import annotations

import random
from itertools import islice

import pytest

from verl_mas.errors import ConfigError, DataError
from verl_mas.gym.split_clues import SHUFFLED, Clues, clues, clues_of, floor, items, shuffled, with_hint
from verl_mas.util.splits import TEST, TRAIN


@pytest.mark.parametrize(
    ("parts", "tasks", "held_out", "left"), [(2, 1680, 420, 3), (3, 1680, 240, 3), (4, 6720, 1680, 4)]
)
def test_every_part_is_needed_and_one_part_alone_is_right_with_one_over_its_letters_in_both_splits(
    parts, tasks, held_out, left
):
    train, test = list(clues(TRAIN, parts)), list(clues(TEST, parts))
    assert (len(train) + len(test), len(test)) == (tasks, held_out) and len({*train, *test}) == tasks
    for task in islice(train, 0, None, 7):
        sets = [set(part) for part in task.parts]
        assert set.intersection(*sets) == {task.answer} and {len(one) for one in sets} == {left}
        for k in range(parts):
            assert len(set.intersection(*sets[:k], *sets[k + 1 :])) > 1
    for split in (train, test):
        assert [floor(split, part) for part in range(parts)] == [pytest.approx(1 / left, abs=1e-12)] * parts


def test_a_rule_that_reads_all_clues_is_always_right():
    whole = [Clues(task.answer, (" ".join(task.parts),)) for task in clues(TEST)]
    assert floor(whole, 0) == 1


def test_a_hint_moves_the_floor_by_what_it_says():
    held_out = list(clues(TEST))
    # Always wrong: in half of the tasks it is one of the part's own three letters, and two are left to guess from.
    assert floor(held_out, 0, decoys=1.0) == pytest.approx(5 / 12, abs=1e-12)
    assert floor(held_out, 1, decoys=0.0) == 1
    # It is worth following where it is one of the part's own letters: 0.4, and 0.3 of the tasks with 1/3.
    assert floor(held_out, 0, decoys=0.6) == pytest.approx(0.4 + 0.3 / 3, abs=1e-12)


def test_hints_are_drawn_with_their_shares():
    rng = random.Random(0)
    hinted = [with_hint(task, 0.7, rng) for task in clues(TRAIN)]
    assert all(task.hint in "".join(task.parts) for task in hinted)
    assert sum(task.hint != task.answer for task in hinted) / len(hinted) == pytest.approx(0.7, abs=0.04)
    assert {task.hint for task in items(9)} == {""}


def test_the_control_has_every_senders_clues_once_and_never_with_its_own_task():
    held_out = items(None, split=TEST)
    mixed = shuffled(held_out)
    assert sorted(item.parts[0] for item in mixed) == sorted(item.parts[0] for item in held_out)
    assert [item.parts[1] for item in mixed] == [item.parts[1] for item in held_out]
    assert {item.source for item in mixed} == {SHUFFLED}
    # A receiver that trusts such messages does not do better than with its own clues.
    left = [set(item.parts[0]) & set(item.parts[1]) or set(item.parts[1]) for item in mixed]
    right = sum((item.truth in letters) / len(letters) for item, letters in zip(mixed, left, strict=True))
    assert right / len(mixed) == pytest.approx(1 / 3, abs=0.05)


def test_a_row_names_its_parts_and_is_read_back():
    [item] = items(1, seed=3, parts=3, decoys=0.5)
    assert clues_of(item.row(0, TRAIN)["extra_info"], item.truth, 3) == Clues(item.truth, item.parts, item.hint)
    with pytest.raises(DataError, match="--parts 2"):
        clues_of(item.row(0, TRAIN)["extra_info"], item.truth, 2)
    with pytest.raises(DataError, match="a right letter"):
        clues_of(item.row(0, TRAIN)["extra_info"], "", 3)


def test_numbers_that_cannot_be_made_are_refused():
    with pytest.raises(ConfigError, match="only 420 in 'test'"):
        items(421, split=TEST)
    with pytest.raises(ConfigError, match="there are 2, 3, 4"):
        items(1, parts=5)
