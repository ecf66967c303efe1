"""Every generated data set: the seed decides its rows and lessons, and no test row is trained on."""

from dataclasses import replace
from itertools import islice

import pyarrow.parquet as pq
import pytest

from verl_mas.cli.data import main, parser
from verl_mas.data.dataset import DATA_SETS, FILES, Prepared
from verl_mas.errors import ConfigError
from verl_mas.gym.warmup import Generated

# Data set -> arguments for small rows of each kind.
KINDS = {
    "arithmetic": ["--terms 4"],
    "guide_driver": ["--size size=5", "--speaks every_turn"],
    "invented": ["--entities 300 --hops 2"],
    "lookup": ["--shards 3 --keys 3"],
    "programs": [""],
    "puzzle": ["plan_path --size size=4", "sokoban --size size=5", "sudoku"],
    "self_play": ["open_spiel/tic_tac_toe --options opening=2", "open_spiel/kuhn_poker"],
    "split_clues": ["", "--parts 3 --rounds 2 --decoys 0.5"],
}
CASES = [f"{name} {arguments}" for name, kinds in KINDS.items() for arguments in kinds]
ALL_ROWS = "self_play open_spiel/tic_tac_toe"  # each opening is a row, whatever the seed is


@pytest.fixture
def made(tmp_path):
    """Make a data set and its options from a case and a seed."""

    def made(case: str, seed: int = 0) -> tuple[Generated, object]:
        rows = "" if case.startswith(ALL_ROWS) else "--train-rows 30 --test-rows 10"
        words = f"{case} --out {tmp_path} --seed {seed} --noise 0.3 {rows}".split()
        options = parser(words[0]).parse_args(words)
        return options.dataset, options

    return made


def rows(data: Generated, options: object) -> dict[str, list[dict[str, object]]]:
    prepared: Prepared = data.generate(options)
    parts = {"train": prepared.train, "test": prepared.test, "validation": prepared.validation}
    return {split: [item.row(index, split) for index, item in enumerate(part)] for split, part in parts.items()}


def test_every_generated_data_set_is_here():
    assert {name for name in DATA_SETS if issubclass(DATA_SETS[name], Generated)} == set(KINDS)


@pytest.mark.parametrize("case", CASES)
def test_the_seed_decides_the_training_rows(made, case):
    first, same, other = (rows(*made(case, seed)) for seed in (1, 1, 2))
    assert first == same and (first["train"] == other["train"]) == case.startswith(ALL_ROWS)
    if case.startswith(("puzzle", "guide_driver", "split_clues", "self_play")):
        assert (first["test"], first["validation"]) == (other["test"], other["validation"])


@pytest.mark.parametrize("case", CASES)
def test_the_files_hold_the_rows_and_no_test_row_is_trained_on(made, case):
    data, options = made(case)
    prepared = data.generate(options)
    assert not {item.key for item in prepared.train} & {item.key for item in prepared.test}
    prepared.write(options.out)
    files = {split: pq.read_table(options.out / name).to_pylist() for split, name in FILES.items()}
    assert files == rows(data, options)


@pytest.mark.parametrize("case", CASES)
def test_lessons_are_those_of_their_seed(made, case):
    def lessons(seed: int) -> list:
        data, options = made(case, seed)
        return list(islice(data.lessons(options), 40))

    first, same, other = map(lessons, (1, 1, 2))
    assert first == same != other
    assert all(lesson.prompt and lesson.reply for lesson in first)


@pytest.mark.parametrize("case", CASES)
def test_a_model_is_written_beside_the_rows_on_request(made, case, monkeypatch):
    warmed_up = []
    monkeypatch.setattr("verl_mas.gym.warmup.warm_up", lambda *arguments: warmed_up.append(arguments))
    data, options = made(case)
    options.warm_up = ["steps=7"]
    data.prepare(options, None)
    [(folder, _, config, _)] = warmed_up
    assert folder == options.out / "model" and config == replace(data.warm_up, steps=7, seed=0)
    options.noise = None
    vars(options).update(data.unset)
    data.prepare(options, None)
    assert len(warmed_up) == 1


@pytest.mark.parametrize(
    ("arguments", "match"),
    [
        ("--train-rows 0", "at least 1"),
        ("--noise 25", "at least 0 and less than 1"),
        ("--warm-up steps=5", "--warm-up without --noise"),
        ("--noise 0.2 --warm-up stesp=5", "did you mean 'steps'"),
        ("--noise 0.2 --warm-up learning_rate=.nan", "a finite number, above 0"),
        ("--noise 0.2 --warm-up start=/nowhere", "the folder has a model"),
        ("--noise 0.2 --warm-up start=/nowhere hidden=8", "trained further keeps its shape"),
    ],
)
@pytest.mark.parametrize("name", KINDS)
def test_a_wrong_option_is_refused_before_anything_is_written(tmp_path, name, arguments, match):
    check_refused(tmp_path, f"{name} {KINDS[name][0]} {arguments}", match)


NOISY = "puzzle plan_path --noise 0.7"


@pytest.mark.parametrize(
    ("arguments", "match"),
    [
        ("split_clues --rounds 2", "--rounds without --noise"),
        ("guide_driver --map picture", "--map without --noise"),
        ("puzzle plan_path --args max_turns=2", "--args without --noise"),
        ("invented --hops 0", "at least 1"),
        (f"{NOISY} --size sise=4", "did you mean 'size'"),
        (f"{NOISY} --size size=", "NAME=VALUE"),
        (f"{NOISY} --size size=[", "read as YAML"),
        (f"{NOISY} --size min_distance=0 --practice min_distance=5", "at least 1"),
        (f"{NOISY} --practice min_distance=0", "at least 1"),
        (f"{NOISY} --args move=1", "did you mean 'moves'"),
        (f"{NOISY} --args moves=2.5", "a whole number"),
        (f"{NOISY} --workflow single", "use planner_executor"),
    ],
)
def test_a_wrong_option_of_one_data_set_is_refused(tmp_path, arguments, match):
    check_refused(tmp_path, arguments, match)


def check_refused(folder, arguments, match):
    with pytest.raises(ConfigError, match=match):
        main([*arguments.split(), "--out", str(folder)])
    assert not list(folder.iterdir())
