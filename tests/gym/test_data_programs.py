from __future__ import annotations

import io
import random
import sys
from contextlib import redirect_stdout
from dataclasses import replace

import pytest

from verl_mas.data.items import overlap
from verl_mas.errors import ConfigError
from verl_mas.execution.problem import Problem
from verl_mas.gym.programs import CHANGE, COMBINE, HIDDEN, KEEP, TWIN, Program, problem, programs, tasks
from verl_mas.util.splits import TEST, TRAIN


def printed(code, given, monkeypatch):
    """What the code prints, really run; None if it raises ValueError."""
    monkeypatch.setattr(sys, "stdin", io.StringIO(given))
    with redirect_stdout(io.StringIO()) as out:
        try:
            exec(code, {})
        except ValueError:
            return None
    return out.getvalue().strip()


def test_the_code_of_a_program_prints_what_the_program_means(monkeypatch):
    rng = random.Random(0)
    of_every_part = [
        *(Program(keep, "squared", "sum") for keep in KEEP),
        *(Program("odd", change, "list") for change in CHANGE),
        *(Program("above 5", "negated", combine) for combine in COMBINE),
    ]
    for program in of_every_part:
        for _ in range(10):
            numbers = tuple(rng.randint(0, 9) for _ in range(rng.randint(1, 3)))
            assert printed(program.code, " ".join(map(str, numbers)), monkeypatch) == program.output(numbers)


def test_no_statement_is_in_both_splits_and_every_part_is_in_both():
    train, test = programs(TRAIN), programs(TEST)
    assert not {one.statement for one in train} & {one.statement for one in test}
    assert len(train) + len(test) == len(KEEP) * len(CHANGE) * len(COMBINE)
    for part, table in (("keep", KEEP), ("change", CHANGE), ("combine", COMBINE)):
        for split in (train, test):
            assert {getattr(one, part) for one in split} == set(table)
    assert not overlap(tasks(50), tasks(50, split=TEST))


def test_the_hidden_tests_tell_a_program_from_its_twin_and_from_nearly_all_that_differ_in_one_part():
    rng = random.Random(0)
    passed, by_twin = [], []
    for program in rng.sample(programs(TRAIN), 60):
        inputs = [tuple(map(int, test.input.split())) for test in problem(program, rng).tests]
        assert len(set(inputs)) == HIDDEN

        def passes(other, program=program, inputs=inputs):
            return [other.output(numbers) == program.output(numbers) for numbers in inputs]

        passed += [all(passes(other)) for other in program.variants()]
        by_twin += [any(passes(replace(program, keep=TWIN[program.keep])))]
    assert sum(passed) / len(passed) < 0.08
    # The others cannot be told apart, such as the smallest below 3 from the smallest up to 3.
    assert sum(by_twin) / len(by_twin) < 0.35


def test_twins_are_different_conditions_that_are_each_others_twins():
    assert set(TWIN) == set(KEEP)
    for one, other in TWIN.items():
        assert TWIN[other] == one
        kept = [Program(words, "plus 1", "list").output(tuple(range(10))) for words in (one, other)]
        assert kept[0] and kept[1] and kept[0] != kept[1]


def test_a_row_has_the_example_in_its_question_and_a_golden_program_in_its_ground_truth():
    [item] = tasks(1, seed=3)
    statement, example = item.question.split("\n")
    found = Problem.read(item.truth)
    [shown] = found.examples
    assert example == f"{shown.input}>{shown.output}"
    assert {program.statement: program.code for program in programs(TRAIN)}[statement] == found.golden
    assert tasks(1, seed=3) == [item] != tasks(1, seed=4)


def test_more_rows_than_there_are_programs_are_refused():
    with pytest.raises(ConfigError, match="there are only"):
        tasks(5_000)
