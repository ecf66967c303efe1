from __future__ import annotations

import pandas
import pytest

from verl_mas.cli.data import main
from verl_mas.errors import ConfigError
from verl_mas.gym.puzzles.base import board_of
from verl_mas.gym.puzzles.data import tiny_workflow


def test_boards_are_written_and_read_back_without_an_overlap(tmp_path):
    assert (
        main(
            [
                "puzzle",
                "plan_path",
                "--out",
                str(tmp_path),
                "--size",
                "size=4",
                "--train-rows",
                "20",
                "--test-rows",
                "8",
            ]
        )
        == 0
    )
    train, test = (pandas.read_parquet(tmp_path / f"{split}.parquet") for split in ("train", "test"))
    assert (len(train), len(test)) == (20, 8) and not (tmp_path / "model").exists()
    layouts = [{board_of(info).board.layout for info in frame["extra_info"]} for frame in (train, test)]
    assert not layouts[0] & layouts[1]


def test_another_seed_gives_other_training_boards_and_the_same_held_out_ones(tmp_path):
    for seed in ("0", "1"):
        main(
            [
                "puzzle",
                "sokoban",
                "--out",
                str(tmp_path / seed),
                "--train-rows",
                "5",
                "--test-rows",
                "3",
                "--seed",
                seed,
            ]
        )
    read = {
        (s, f): pandas.read_parquet(tmp_path / s / f"{f}.parquet")["prompt"].map(str).tolist()
        for s in "01"
        for f in ("train", "test")
    }
    assert read["0", "test"] == read["1", "test"] and not set(read["0", "train"]) & set(read["1", "train"])


def test_mistakes_are_refused_with_a_fix(tmp_path):
    with pytest.raises(ConfigError, match="did you mean 'size'"):
        main(["puzzle", "plan_path", "--out", str(tmp_path), "--size", "sise=4"])
    with pytest.raises(ConfigError, match="planner_executor"):
        tiny_workflow("single", {})
    with pytest.raises(ConfigError, match="did you mean 'plan_path'"):
        main(["puzzle", "plan_pth", "--out", str(tmp_path)])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--size", "4"], "NAME=VALUE"),
        (["--size", "size="], "NAME=VALUE"),
        (["--size", "size=["], "read as YAML"),
        (["--size", "size=four"], "of type int"),
        (["--size", "walls=few"], "of type float"),
        (["--size", "min_distance=0"], "1 or more"),
        (["--size", "min_distance=0", "--practice", "min_distance=5"], "1 or more"),
        (["--practice", "min_distance=0"], "1 or more"),
        (["--train-rows", "0"], "at least one row"),
        (["--test-rows", "-3"], "at least one row"),
        (["--noise", "72"], "at least 0 and less than 1"),
        (["--args", "move=1"], "did you mean 'moves'"),
        (["--args", "moves=2.5"], "a whole number"),
        (["--args", "moves=two"], "a whole number"),
        (["--warm-up", "stepz=9"], "did you mean 'steps'"),
        (["--warm-up", "steps=2.5"], "a whole number"),
        (["--warm-up", "steps=0"], "at least 1"),
        (["--warm-up", "learning_rate=.nan"], "a finite number, above 0"),
        (["--warm-up", "start=/nowhere"], "the folder has a model"),
    ],
)
def test_a_value_that_cannot_work_is_refused_before_anything_is_written(tmp_path, options, message):
    with pytest.raises(ConfigError, match=message):
        main(["puzzle", "plan_path", "--out", str(tmp_path), "--noise", "0.7", *options])
    assert not list(tmp_path.iterdir())
