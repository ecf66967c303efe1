"""`verl-mas data rows`: a user's file in verl's format, or one error with its row."""

import json

import pyarrow.parquet as pq
import pytest
from PIL import Image

from verl_mas import cli
from verl_mas.cli.data import main
from verl_mas.errors import ConfigError, DataError

ROWS = [{"question": "1+1?", "answer": 2, "topic": "sums"}, {"question": "2+2?", "answer": 4, "topic": "more sums"}]


@pytest.fixture
def made(tmp_path):
    """Return a function that writes rows into a file, and returns the rows that the command makes of it."""

    def made(rows, *options, name="mine.jsonl", content=None):
        file = tmp_path / name
        file.write_text("".join(f"{json.dumps(row)}\n" for row in rows) if content is None else content)
        out = tmp_path / "out" / "x.parquet"
        assert main(["rows", str(file), "--out", str(out), "--force", *options]) == 0
        return pq.read_table(out).to_pylist()

    return made


def test_rows_are_in_verls_format(made):
    assert made(ROWS)[1] == {
        "data_source": "mine",
        "prompt": [{"role": "user", "content": "2+2?"}],
        "reward_model": {"style": "rule", "ground_truth": "4"},
        "extra_info": {"split": "train", "index": 1},
    }


def test_templates_name_columns_and_braces_are_doubled(made):
    options = ["--template", "{{{topic}}}: {question}", "--system", "Be brief.", "--source", "my_{topic}"]
    (row,) = made(ROWS, *options, "--keep", "topic", "--split", "test", "--limit", "1")
    assert [message["content"] for message in row["prompt"]] == ["Be brief.", "{sums}: 1+1?"]
    assert row["data_source"] == "my_sums" and row["extra_info"] == {"split": "test", "index": 0, "topic": "sums"}


def test_a_conversation_is_kept_and_a_missing_ground_truth_is_asked_for(made):
    messages = [{"role": "system", "content": "s"}, {"role": "user", "content": "u"}]
    row = made([{"chat": messages}], "--template", "{chat}", "--no-answer")[0]
    assert row["prompt"] == messages and row["reward_model"]["ground_truth"] == ""


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("mine.csv", 'question,answer\n"1+1, or?",2\n'),
        ("mine.tsv", "question\tanswer\n1+1, or?\t2\n"),
        ("mine.json", '[{"question": "1+1, or?", "answer": 2}]'),
    ],
)
def test_other_formats_give_the_same_rows(made, name, content):
    [row] = made([], name=name, content=content)
    assert row["prompt"][0]["content"] == "1+1, or?" and row["reward_model"]["ground_truth"] == "2"


def test_images_are_stored_and_stand_where_the_prompt_has_them(made, tmp_path):
    Image.new("1", (1, 1)).save(tmp_path / "a.png")
    rows = [{"question": "What is it?", "answer": "a cat", "picture": "a.png"}]
    row = made(rows, "--images", "picture", "--template", "{question} <image>")[0]
    assert row["images"] == [{"bytes": (tmp_path / "a.png").read_bytes()}]
    assert row["prompt"][0]["content"] == "What is it? <image>"
    with pytest.raises(DataError, match="0 times <image> in the prompt, 1 images"):
        made(rows, "--images", "picture")
    (tmp_path / "a.png").write_text("text")
    with pytest.raises(DataError, match=r"'a.png' is no image"):
        made(rows, "--images", "picture", "--template", "{question} <image>")


@pytest.mark.parametrize(
    ("rows", "options", "says"),
    [
        (ROWS, ["--template", "{quesion}"], "row 1 has no column 'quesion'.*did you mean 'question'"),
        (ROWS, ["--template", "Solve {}"], "braces without a column"),
        (ROWS, ["--template", "Solve {question"], "write {{ and }}"),
        ([{"question": " ", "answer": 1}], [], "row 1: question is empty"),
        ([{"chat": []}], ["--template", "{chat}", "--no-answer"], "row 1: chat is empty"),
        (ROWS, ["--template", "{question} {answer}"], "with the answers of answer"),
        (ROWS, ["--template", "Solve it"], "names no column"),
        (ROWS, ["--template", "{question:>9}"], "a format in braces"),
        ([*ROWS, {"question": "3?", "answer": None}], [], "row 3: answer is empty"),
        ([*ROWS, {"answer": 1}], [], "row 3 has no column 'question'"),
        ([ROWS[0], {"question": "2?", "answer": ["4", "four"]}], [], "a column of parquet has one type"),
        ([{"question": "1?", "answer": 1, "picture": "no.png"}], ["--images", "picture"], "'no.png' is no file"),
        ([{"chat": [{"role": "user"}]}], ["--template", "{chat}", "--no-answer"], "row 1: chat has the message"),
        ([{"chat": ["a"]}], ["--template", "Say {chat}", "--no-answer"], "row 1: chat is a list"),
        ([{"question": "a", "answer": [""]}], [], "an answer is not empty"),
        (ROWS, ["--keep", "split"], "--keep split"),
        ([], [], "no rows"),
    ],
)
def test_a_row_that_does_not_fit_is_refused_with_its_number(made, tmp_path, rows, options, says):
    with pytest.raises(DataError, match=f"(?s){says}"):
        made(rows, *options)
    assert not list(tmp_path.glob("**/*.parquet*"))


@pytest.mark.parametrize(
    ("name", "content", "says"),
    [
        ("mine.jsonl", '{"question": "1?", "answer": 1}\n{"question": \n', "line 2"),
        ("mine.csv", "question,answer\n1?,2\n3?\n", "line 3 has 1 cells"),
        ("mine.csv", "question,answer\n1?,2,3\n", "line 2 has 3 cells"),
        ("mine.csv", "question,answer,answer\n1?,2,3\n", "the header is"),
        ("mine.json", '[{"question": "1?"', "a .json file holds a list of objects"),
        ("mine.json", '["1?"]', "no list of objects"),
        ("mine.json", '{"question": "1?", "answer": 2}', "one object"),
        ("mine.txt", "", "the file must exist and end in"),
    ],
)
def test_a_file_that_cannot_be_read_is_refused_with_the_place(made, name, content, says):
    with pytest.raises(DataError, match=says):
        made([], name=name, content=content)


def test_nothing_is_replaced_unasked_and_only_parquet_is_written(tmp_path, capsys):
    (tmp_path / "a.jsonl").write_text(json.dumps(ROWS[0]))
    (tmp_path / "x.parquet").write_text("mine")
    with pytest.raises(ConfigError, match="add --force"):
        main(["rows", f"{tmp_path}/a.jsonl", "--out", f"{tmp_path}/x.parquet"])
    assert (tmp_path / "x.parquet").read_text() == "mine"
    assert cli.main(["data", "rows", f"{tmp_path}/a.jsonl", "--out", f"{tmp_path}/x.csv"]) == 1
    assert f"use --out {tmp_path}/x.parquet" in capsys.readouterr().err
    assert cli.main(["data", "rows", "a.jsonl", "--out", "b.parquet", "--answer", "a", "--no-answer"]) == 2
    assert "not allowed with" in capsys.readouterr().err


def test_the_summary_is_safe_for_a_terminal_and_json_on_request(made, capsys):
    made([{"question": "\x1b[2J", "answer": 1}])
    assert "\\x1b[2J" in capsys.readouterr().out
    made(ROWS, "--json")
    found = json.loads(capsys.readouterr().out)
    assert found["rows"] == 2 and found["data_sources"] == {"mine": 2}
