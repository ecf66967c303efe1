import pandas
import pytest

from verl_mas.cli.data import main
from verl_mas.data.reasoning_gym import compute_score, item_of, rows
from verl_mas.errors import ConfigError, DataError

pytest.importorskip("reasoning_gym")
CHAIN = {"max_terms": 3}


def score(row, reply):
    truth = row["reward_model"]["ground_truth"]
    return compute_score(row["data_source"], reply, truth, row["extra_info"])


def questions(made):
    return [row["prompt"][0]["content"] for row in made]


def test_rows_are_repeatable_different_and_disjoint_whatever_the_seed():
    train = rows("chain_sum", 40, "train", 0, CHAIN)
    test = rows("chain_sum", 20, "test", 0, CHAIN)
    assert questions(train) == questions(rows("chain_sum", 40, "train", 0, CHAIN))
    assert questions(test) == questions(rows("chain_sum", 20, "test", 5, CHAIN))
    other = rows("chain_sum", 40, "train", 5, CHAIN)
    assert len(set(questions(train))) == 40 and questions(other) != questions(train)
    assert not {*questions(train), *questions(other)} & set(questions(test))


def test_a_small_task_is_also_disjoint_and_too_many_rows_are_refused():
    config = {"min_terms": 2, "max_terms": 2, "min_digits": 1, "max_digits": 1}
    train, test = rows("chain_sum", 60, "train", 0, config), rows("chain_sum", 12, "test", 0, config)
    assert not set(questions(train)) & set(questions(test))
    with pytest.raises(ConfigError, match="different ones were found"):
        rows("chain_sum", 1000, "test", 0, config)


def test_an_answer_outside_a_box_is_malformed_even_when_it_is_right_and_a_partial_solution_is_not_a_solution():
    (row,) = rows("chain_sum", 1, "train", 0, CHAIN)
    truth = row["reward_model"]["ground_truth"]
    without_box, partial = score(row, truth), score(row, f"\\boxed{{{truth} or so}}")
    assert (without_box["score"], without_box["malformed"]) == (0.0, 1.0)
    assert 0 < partial["score"] < 1 and partial["acc"] == 0.0


def test_rows_of_another_version_or_origin_are_refused():
    (row,) = rows("maze", 1, "train", 0, {})
    with pytest.raises(DataError, match="write the rows again"):
        item_of({**row["extra_info"], "checksum": 1})
    with pytest.raises(DataError, match="verl-mas data reasoning_gym"):
        score({**row, "extra_info": {"index": 0}}, "\\boxed{1}")


def test_the_command_writes_rows_that_can_be_scored(tmp_path):
    arguments = "reasoning_gym maze --config min_dist=3 --train-rows 8 --test-rows 4 --out"
    assert main([*arguments.split(), str(tmp_path)]) == 0
    train, test = (pandas.read_parquet(tmp_path / f"{split}.parquet") for split in ("train", "test"))
    assert (len(train), len(test)) == (8, 4)
    row = train.iloc[0]
    assert score(row, f"\\boxed{{{row['reward_model']['ground_truth']}}}")["acc"] == 1.0
