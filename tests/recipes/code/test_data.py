"""`verl-mas data code`: golden programs really run, and everything that is dropped is counted."""

import json
from dataclasses import replace

import code_rows as rows
import pyarrow.parquet as pq
import pytest

from verl_mas.cli.data import main
from verl_mas.config.hydra.recipe.code import data as code_data
from verl_mas.config.hydra.recipe.code import golden
from verl_mas.config.hydra.recipe.code.data import JOURNAL, CodeItem
from verl_mas.environment.execution.problem import Problem
from verl_mas.errors import ConfigError, DataError

RUN = ["--execution", "executor=unsafe_subprocess", "cpu_s=1", "slots=2"]
WRONG = "a, b = map(int, input().split())\nprint(a - b)\n"
CRASHES = "print undefined"


@pytest.fixture
def run(tmp_path):
    """The data set of these training rows (and test rows), from files."""

    def run(*train, options="", test=None):
        for file, of_file in (("train.jsonl", train), ("test.jsonl", test or [rows.livecodebench()])):
            text = "".join(json.dumps(row) + "\n" for row in of_file)
            if not (tmp_path / file).exists() or (tmp_path / file).read_text() != text:
                (tmp_path / file).write_text(text)
        files = ["--train", f"{tmp_path}/train.jsonl", "--test", f"lcb={tmp_path}/test.jsonl"]
        assert main(["code", "--out", str(tmp_path / "out"), *files, *RUN, *options.split()]) == 0
        return json.loads((tmp_path / "out" / "manifest.json").read_text())

    return run


def prepared(tmp_path, split="train"):
    return pq.read_table(tmp_path / "out" / f"{split}.parquet").to_pylist()


def problems(tmp_path, split="train"):
    return [Problem.read(row["reward_model"]["ground_truth"]) for row in prepared(tmp_path, split)]


def test_apps_becomes_rows_with_hidden_tests_examples_and_a_golden_program_that_passes(tmp_path, run, capsys):
    manifest = run(rows.apps())
    [row], [problem] = prepared(tmp_path), problems(tmp_path)
    assert row["prompt"] == [{"role": "user", "content": rows.apps()["question"].strip()}]
    assert [test.input for test in problem.examples] == ["1 2\n"] and problem.golden == rows.SUM
    assert {test.input for test in problem.tests} == {"10 20\n", "7 8\n"}
    [test] = problems(tmp_path, "test")
    assert test.golden is None and len(test.tests) == 2 and problems(tmp_path, "validation") == [test]
    assert manifest["tasks"]["train"] == {
        "kept": 1,
        "with_golden_program": 1,
        "dropped": {},
        "examples_from": {"statement": 1},
        "without_other_tests_than_examples": 0,
        "tests_left_out": 0,
    }
    assert manifest["tasks"]["lcb"]["examples_from"] == {"public_tests": 1}
    shown = capsys.readouterr().err
    assert "train: 1 rows [" in shown and "1 kept]" in shown


def test_every_reason_to_drop_a_row_is_counted(tmp_path, run):
    deep = [json.loads("[" * depth + "]" * depth) for depth in (60, 150, 900)]
    dropped = {
        "no_tests": [rows.apps("apples", input_output="")],
        "no_golden_program": [rows.apps("beans", solutions=())],
        "no_golden_program_passes": [rows.apps("corn", solutions=[CRASHES]), rows.apps("dates", solutions=[WRONG])],
        "golden_programs_disagree": [rows.apps("eggs", solutions=[WRONG, rows.SUM])],
        "tests_too_long": [rows.apps("figs", tests=[("1 2\n" + " " * (10 << 20), "3")])],
        "question_too_long": [rows.apps("x" * 20_000)],
        # Texts that are not JSON, and values that are nested too deeply to be passed to programs.
        "unreadable_tests": [
            rows.apps("grapes", input_output="{"),
            *(rows.apps_function("f", [[value], [1]], [1, 1], ["def f(x): return 1"]) for value in deep),
        ],
        "no_question": [rows.apps(question="")],
    }
    manifest = run(rows.apps(), *(row for of_reason in dropped.values() for row in of_reason))
    counts = {reason: len(of_reason) for reason, of_reason in dropped.items()}
    assert manifest["tasks"]["train"]["dropped"] == counts
    assert len(prepared(tmp_path)) == manifest["tasks"]["train"]["kept"] == 1


def test_a_golden_program_that_crashes_does_not_drop_a_task_that_another_one_solves(tmp_path, run):
    run(rows.code_contests(solutions=[(3, CRASHES), (1, "print 3"), (3, rows.SUM)]))
    assert problems(tmp_path)[0].golden == rows.SUM


def test_without_a_required_golden_program_tasks_are_kept_unless_one_contradicts_the_tests(tmp_path, run):
    manifest = run(
        *(rows.apps("apples", solutions=()), rows.apps("beans", solutions=[CRASHES])),
        *(rows.apps("corn", solutions=[WRONG]), rows.apps_function("f", [[1]], [[2]], [], question="Return the next.")),
        options="--golden optional",
    )
    assert manifest["tasks"]["train"]["dropped"] == {"no_golden_program_passes": 1, "outputs_ambiguous": 1}
    assert [problem.golden for problem in problems(tmp_path)] == [None, None]


def test_a_golden_program_shows_whether_an_expected_list_of_one_is_meant_or_its_content(tmp_path, run):
    golden = {"Return the next number.": "def f(x): return x + 1", "Return a list of it.": "def f(x): return [x + 1]"}
    run(*(rows.apps_function("f", [[1], [4]], [[2], [5]], [code], question=text) for text, code in golden.items()))
    content, whole = problems(tmp_path)
    assert content.examples[0].expected == 2 and whole.examples[0].expected == [2]


def test_golden_programs_of_functions_have_the_imports_that_their_site_has(tmp_path, run):
    power = "def power(a: List[int]) -> int:\n    return pow(a[0], a[1], 7) + floor(math.pi)"
    run(
        rows.apps_function("twice", [[[1, 2]], [[3, 3]]], [[2, 4], [6, 6]], [rows.TWICE]),
        rows.apps_function("power", [[[2, 5]], [[3, 3]]], [7, 9], [power], question="Return a power."),
    )
    assert ["from typing import *" in problem.golden for problem in problems(tmp_path)] == [True, True]


def test_at_most_ten_tests_are_kept_and_the_manifest_says_how_many_are_not(tmp_path, run):
    many = [(f"{number} 1\n", f"{number + 1}\n") for number in range(40)]
    manifest = run(rows.apps(tests=many), options="--rules max_tests=4")
    assert len(problems(tmp_path)[0].tests) == 4 and manifest["tasks"]["train"]["tests_left_out"] == 40 - 4 - 1
    assert manifest["rules"]["max_tests"] == 4


def test_a_first_test_that_becomes_the_example_is_added_to_the_question(tmp_path, run):
    asserts = {"tests": ["assert add(1, 2) == 3", "assert add(0, 0) == 0"], "golden": "def add(a, b): return a + b"}
    manifest = run(rows.own("Print the sum."), rows.own("Print it.", tests=rows.SUMS[:1]), rows.own("Add.") | asserts)
    assert [row["prompt"][0]["content"] for row in prepared(tmp_path)] == [
        "Print the sum.\n\nExample\n\nInput\n1 2\n\nOutput\n3",
        "Print it.",  # the only test is hidden
        "Add.\n\nExample\n\nassert add(1, 2) == 3",
    ]
    assert manifest["tasks"]["train"]["without_other_tests_than_examples"] == 1


def test_duplicates_and_twins_of_tested_tasks_are_dropped_from_training(tmp_path, run):
    narrative = "Polycarp has $n$ boxes, and the $i$-th of them \\leq others in each of its three dimensions."
    twin = narrative.replace("$", "").replace("\\leq", "≤") + "\n\n-----Input-----\n\nOther words.\n"
    other = narrative.replace("boxes", "bags")
    again = rows.own(other + "\n\nExamples\n\nInput\n1 2\nOutput\n3")
    tested = rows.livecodebench(question_content=narrative + "\n\nInput\n\nWords.")
    manifest = run(rows.own(twin), rows.own(other), again, test=[tested])
    assert manifest["train_duplicates_dropped"] == manifest["train_rows_also_in_test"] == 1
    assert [row["prompt"][0]["content"].split("\n")[0] for row in prepared(tmp_path)] == [other]


def test_tasks_with_the_same_input_section_but_other_narratives_are_different():
    first, second = (CodeItem(f"Find the {what}.\n\nInput\n\nOne number.", "", "s") for what in ("sum", "product"))
    assert first.key != second.key


def test_a_second_call_resumes_after_what_was_judged(tmp_path, run, monkeypatch, capsys):
    train = [rows.apps(), rows.apps("apples"), rows.apps("beans", solutions=[WRONG])]
    first = run(*train)
    journal = tmp_path / "out" / JOURNAL
    lines = journal.read_bytes().splitlines(keepends=True)
    journal.write_bytes(b"".join(lines[:-1]) + lines[-1][:20])  # killed while writing

    ran = []
    monkeypatch.setattr(golden, "run_tests", lambda *args: ran.append(args) or _never())
    (tmp_path / "out" / "manifest.json").unlink()
    # The last line is of the test row, which has no golden program.
    assert run(*train, options="--force") == first and not ran
    capsys.readouterr()
    with pytest.raises(AssertionError, match="run again"):
        run(*train, options="--force --rules seed=1")
    assert "of other data or settings" in capsys.readouterr().err


async def _never():
    raise AssertionError("run again")


def test_a_failure_of_the_executor_ends_the_command_and_drops_nothing(tmp_path, run, monkeypatch):
    async def down(*args):
        raise ConnectionError("the service is down")

    with monkeypatch.context() as patched:
        patched.setattr(golden, "run_tests", down)
        with pytest.raises(ConnectionError):
            run(rows.apps())
    assert not (tmp_path / "out" / "train.parquet").exists()
    assert run(rows.apps())["tasks"]["train"]["kept"] == 1


@pytest.mark.parametrize(
    ("train", "says"),
    [
        ([rows.own(), rows.own() | {"tests": [{"input": "1"}]}], "row 1 cannot be read"),
        ([rows.apps(solutions=())], r'no task of train is left.*"no_golden_program": 1'),
    ],
)
def test_an_own_row_that_cannot_be_read_and_nothing_left_end_the_command(tmp_path, run, train, says):
    with pytest.raises(DataError, match=says):
        run(*train)
    assert not (tmp_path / "out" / "train.parquet").exists()


def test_public_sets_are_read_by_name_and_pinned(tmp_path, monkeypatch):
    for part in ("TRAIN_SETS", "TEST_SETS"):
        monkeypatch.setattr(code_data, part, tuple(replace(one, rows=1) for one in getattr(code_data, part)))
    public = {"code_contests": [rows.code_contests()], "livecodebench_v6": [rows.livecodebench()]}
    arguments = ["--train-set", "code_contests", "--test-set", "livecodebench_v6"]
    main(
        ["code", "--out", str(tmp_path / "out"), *arguments, *RUN],
        load=lambda one: (public[one.name], one.revision or "?"),
    )
    read = json.loads((tmp_path / "out" / "manifest.json").read_text())["sources"]
    assert read["code_contests"]["revision"] == "802411c3010cb00d1b05bad57ca77365a3c699d6"
    assert set(read) == set(public) and read["code_contests"]["rows"] == 1


@pytest.mark.parametrize(
    ("arguments", "match"),
    [
        ("--rules max_test=3", "did you mean 'max_tests'"),
        ("--rules max_tests=0", "at least 1"),
        ("--execution executor=containd", "executor=containd"),
        ("--execution cpu=1", "did you mean 'cpu_s'"),
        ("--test train=/x.jsonl", "sets named 'train'"),
        ("--revision taco=1", "known: livecodebench_v6"),
        ("--train-set taco", "--train-set with --train"),
    ],
)
def test_wrong_arguments_are_refused_before_anything_is_written(tmp_path, arguments, match):
    (tmp_path / "t.jsonl").write_text(json.dumps(rows.own()) + "\n")
    given = ["--out", str(tmp_path / "out"), "--train", f"{tmp_path}/t.jsonl", *RUN, *arguments.split()]
    with pytest.raises(ConfigError, match=match):
        main(["code", *given], load=lambda one: ([], "?"))
    assert not (tmp_path / "out").exists()
