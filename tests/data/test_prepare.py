"""Data preparation, offline: the hub is a dict of rows."""

import json
from dataclasses import replace

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from verl_mas.cli.data import main
from verl_mas.config.hydra.recipe.math.data import TEST, math_item
from verl_mas.config.hydra.recipe.search.data import Search, search_item
from verl_mas.config.hydra.recipe.tool_math.data import ToolMath
from verl_mas.data import sources
from verl_mas.errors import ConfigError, DataError

SUFFIX = "\nLet's think step by step and output the final answer within \\boxed{}."


def dapo(problem: str, truth: str) -> dict:
    return {"prompt": [{"role": "user", "content": problem + SUFFIX}], "reward_model": {"ground_truth": truth}}


MATH_ROWS = {
    "dapo_filter": [dapo("1+1?", "2"), dapo("1 + 1 ?", "2"), dapo("Shared problem.", "7"), dapo("1-1?", "0")],
    "math500": [{"problem": f"m{i}", "answer": "\\frac{1}{2}"} for i in range(499)]
    + [{"problem": "shared problem", "answer": "7"}],
    "aime24": [{"problem": f"a{i}", "answer": 33} for i in range(30)],
    "aime25": [{"problem": f"b{i}", "answer": 5} for i in range(30)],
    "amc23": [{"problem": f"c{i}", "answer": 27.0} for i in range(40)],
    "olympiadbench": [{"problem": "d", "answer": "x^2"}],
    "minerva": [{"problem": f"e{i}", "answer": "3.2e5"} for i in range(272)],
}


SEARCH_ROWS = {
    "nq_hotpotqa": [{"question": "who?", "golden_answers": ["me"], "data_source": "nq"}],
    "search_r1_test": [
        {"question": f"{source} {i}?", "reward_model": {"ground_truth": {"target": ["a", "b"]}}, "data_source": source}
        for source in ("nq", "bamboogle")
        for i in range(40)
    ],
}


def hub(rows):
    return lambda one: (rows[one.name], one.revision or "f" * 40)


def prepared(folder, split):
    return pq.read_table(folder / f"{split}.parquet").to_pylist()


def test_math_becomes_rows_that_verl_reads_without_overlap_and_duplicates(tmp_path, capsys):
    assert main(["math", "--out", str(tmp_path)], load=hub(MATH_ROWS)) == 0
    train, test = prepared(tmp_path, "train"), prepared(tmp_path, "test")
    assert train[0] == {
        "data_source": "dapo_filter",
        "prompt": [{"role": "user", "content": "1+1?"}],
        "reward_model": {"style": "rule", "ground_truth": "2"},
        "extra_info": {"split": "train", "index": 0},
    }
    assert len(test) == 873 and len(prepared(tmp_path, "validation")) == 110
    assert {row["reward_model"]["ground_truth"] for row in test} >= {"33", "x^2"}
    assert "amc23: no revision is pinned" in capsys.readouterr().out
    manifest = json.loads((tmp_path / "manifest.json").read_text())
    assert [row["prompt"][0]["content"] for row in train] == ["1+1?", "1-1?"]
    assert manifest["train_duplicates_dropped"] == 1 and manifest["train_rows_also_in_test"] == 1
    assert manifest["overlap_examples"] == ["Shared problem."]
    with pytest.raises(ConfigError, match=r"train\.parquet exists"):
        main(["math", "--out", str(tmp_path)], load=lambda one: pytest.fail("the set was read"))


def test_tool_math_trains_on_polaris_and_tests_on_three_competitions(tmp_path, monkeypatch):
    monkeypatch.setattr(ToolMath, "train_sets", tuple(replace(one, rows=1) for one in ToolMath.train_sets))
    rows = MATH_ROWS | {"polaris": [{"problem": "1+1?", "answer": "2", "difficulty": "7/8"}]}
    assert main(["tool_math", "--out", str(tmp_path)], load=hub(rows)) == 0
    assert prepared(tmp_path, "train")[0]["reward_model"]["ground_truth"] == "2"
    assert {row["data_source"] for row in prepared(tmp_path, "test")} == {"aime24", "aime25", "olympiadbench"}


def test_the_manifest_names_every_revision_and_is_printed_on_request(tmp_path, capsys):
    main(["math", "--out", str(tmp_path), "--json", "--revision", "aime24=abc"], load=hub(MATH_ROWS))
    manifest = json.loads((tmp_path / "manifest.json").read_text())
    assert json.loads(capsys.readouterr().out) == manifest
    pins = {name: (read["revision"], read["revision_pinned"]) for name, read in manifest["sources"].items()}
    assert pins["aime24"] == ("abc", True) and pins["amc23"] == ("f" * 40, False)
    assert pins["math500"] == ("ff5b20257d8185524591543f8ff5993951537bb8", True)


def test_checksums_are_of_the_rows_and_not_of_their_files(tmp_path, capsys):
    def written(name, aime24):
        main(["math", "--out", str(tmp_path / name)], load=hub(MATH_ROWS | {"aime24": aime24}))
        manifest = json.loads((tmp_path / name / "manifest.json").read_text())
        return manifest["sources"]["aime24"]["sha256"], *manifest["sha256"].values()

    rows = MATH_ROWS["aime24"]
    first = written("first", rows)
    assert f"{first[1]}  train.parquet\n" in capsys.readouterr().out
    assert written("columns_turned", [dict(reversed(row.items())) for row in rows]) == first
    other = written("another_answer", [*rows[:-1], rows[-1] | {"answer": 34}])
    # The checksums are those of the set, and of the training, test and validation rows.
    assert [mine == theirs for mine, theirs in zip(first, other, strict=True)] == [False, True, False, False]


@pytest.mark.parametrize(
    ("name", "count", "says"),
    [("aime24", 29, "29 rows"), ("dapo_filter", 0, r"aaabiao/dapo_filter \(train\) has no rows")],
)
def test_a_public_set_with_another_number_of_rows_or_none_is_refused(tmp_path, name, count, says):
    with pytest.raises(DataError, match=says):
        main(["math", "--out", str(tmp_path)], load=hub(MATH_ROWS | {name: MATH_ROWS[name][:count]}))
    assert not (tmp_path / "train.parquet").exists()


def test_search_keeps_every_accepted_answer_and_samples_each_source(tmp_path, monkeypatch):
    # The real sets have 169,615 and 51,713 rows.
    for name in ("train_sets", "test_sets"):
        monkeypatch.setattr(Search, name, tuple(replace(one, rows=None) for one in getattr(Search, name)))
    main(["search", "--out", str(tmp_path)], load=hub(SEARCH_ROWS))
    assert prepared(tmp_path, "train")[0]["reward_model"]["ground_truth"] == ["me"]
    test = prepared(tmp_path, "test")
    assert len(test) == 80 and test[0]["reward_model"]["ground_truth"] == ["a", "b"]
    validation = [row["data_source"] for row in prepared(tmp_path, "validation")]
    assert validation.count("nq") == validation.count("bamboogle") == 30


@pytest.mark.parametrize("name", ["own", "minerva"])
def test_local_files_replace_the_hub_and_validation_is_the_whole_test_if_no_set_is_run_in_training(tmp_path, name):
    (tmp_path / "t.jsonl").write_text('{"question": "q", "answer": "1"}\n')
    pq.write_table(pa.Table.from_pylist([{"problem": "p", "answer": "2"}]), tmp_path / "own.parquet")
    arguments = ["--train", str(tmp_path / "t.jsonl"), "--test", f"{name}={tmp_path}/own.parquet"]
    main(["math", "--out", str(tmp_path / "o"), *arguments], load=hub({}))
    test, validation = (prepared(tmp_path / "o", split) for split in ("test", "validation"))
    assert [row["data_source"] for row in test] == [row["data_source"] for row in validation] == [name]


WITHOUT_TRUTH = [{"problem": "p"}, {"problem": "p", "answer": ""}, {"problem": "p", "answer": None}]


@pytest.mark.parametrize(
    ("make", "row", "says"),
    [
        *((make, row, "no ground truth") for make in (math_item, search_item) for row in WITHOUT_TRUTH),
        # A math answer is one text or number.
        *((math_item, {"problem": "p", "answer": truth}, "the ground truth .*5") for truth in (["5"], {"target": "5"})),
        *((math_item, {**row, "answer": "1"}, "no question") for row in ({}, {"problem": ""}, {"prompt": []})),
    ],
)
def test_a_row_without_question_or_ground_truth_is_refused_with_its_number(make, row, says):
    with pytest.raises(DataError, match=f"set, row 3 has {says}"):
        make(row, 3, "set")


def test_a_training_file_without_rows_is_refused_and_nothing_is_written(tmp_path):
    (tmp_path / "all.jsonl").write_text('{"question": "q", "answer": "1"}\n')
    arguments = ["--train", f"{tmp_path}/all.jsonl", "--test", f"own={tmp_path}/all.jsonl"]
    with pytest.raises(DataError, match="train has no rows: 1 read for training, 1 of them also in test"):
        main(["math", "--out", str(tmp_path / "o"), *arguments], load=hub({}))
    assert not (tmp_path / "o").exists()


def test_a_hub_that_cannot_be_reached_is_one_clear_error(monkeypatch):
    import datasets

    def offline(*args, **options):
        raise ConnectionError("no route to host")

    monkeypatch.setattr(datasets, "load_dataset", offline)
    with pytest.raises(ConfigError, match=r"MATH-500 .*no route to host(.|\n)*--train FILE"):
        sources.from_hub(TEST[0])


def test_the_instructions_of_a_dapo_problem_are_removed():
    text = (
        "Solve the following math problem step by step. The last line of your response should be of the form Answer: "
        "$Answer (without quotes) where $Answer is the answer to the problem.\n\nHow many?\n\n"
        'Remember to put your answer on its own line after "Answer:".'
    )
    assert math_item({"prompt": [{"content": text}], "answer": "1"}, 0, "s").question == "How many?"


@pytest.mark.parametrize(
    ("arguments", "match"),
    [
        ("math --revision mistake=1", "mistake"),
        ("math --train /nowhere.jsonl", "nowhere"),
        ("arithmetics", "did you mean 'arithmetic'"),
    ],
)
def test_wrong_arguments_are_refused(tmp_path, arguments, match):
    with pytest.raises((ConfigError, DataError), match=match):
        main([*arguments.split(), "--out", str(tmp_path)], load=hub(MATH_ROWS))
