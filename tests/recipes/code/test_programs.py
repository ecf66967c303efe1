"""Tiny programs: the data set, and demonstrations of coder and tester with mistakes."""

import asyncio
import io
import random
import sys
from contextlib import redirect_stdout
from dataclasses import replace
from itertools import islice

from played import played

from verl_mas.config.hydra.recipe.code import programs
from verl_mas.config.hydra.recipe.code.programs import CHANGE, COMBINE, HIDDEN, KEEP, TWIN, Interpreter, Program
from verl_mas.config.schema import WorkflowSpec
from verl_mas.data.items import overlap
from verl_mas.environment.coding.prompts import ShortCase
from verl_mas.environment.execution.executor import Execution
from verl_mas.environment.execution.problem import Problem
from verl_mas.gym.warmup import bare
from verl_mas.util.splits import TEST, TRAIN
from verl_mas.workflow import Task
from verl_mas.workflow.base import resolve

BY_STATEMENT = {program.statement: program for program in programs.programs(TRAIN)}


def printed(code, given, monkeypatch):
    """Run the code and return its output; None if it raises ValueError."""
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
    train, test = programs.programs(TRAIN), programs.programs(TEST)
    assert not {one.statement for one in train} & {one.statement for one in test}
    assert len(train) + len(test) == len(KEEP) * len(CHANGE) * len(COMBINE)
    for part, table in (("keep", KEEP), ("change", CHANGE), ("combine", COMBINE)):
        for split in (train, test):
            assert {getattr(one, part) for one in split} == set(table)
    assert not overlap(programs.tasks(50), programs.tasks(50, split=TEST))


def test_the_hidden_tests_tell_a_program_from_its_twin_and_from_nearly_all_that_differ_in_one_part():
    rng = random.Random(0)
    passed, by_twin = [], []
    for program in rng.sample(programs.programs(TRAIN), 60):
        inputs = [tuple(map(int, test.input.split())) for test in programs.problem(program, rng).tests]
        assert len(set(inputs)) == HIDDEN

        def passes(other, program=program, inputs=inputs):
            return [other.output(numbers) == program.output(numbers) for numbers in inputs]

        passed += [all(passes(other)) for other in program.variants()]
        by_twin += [any(passes(replace(program, keep=TWIN[program.keep])))]
    assert sum(passed) / len(passed) < 0.08
    # Some twins cannot be distinguished, such as the smallest number below 3 and the smallest number up to 3.
    assert sum(by_twin) / len(by_twin) < 0.35


def test_a_row_has_the_example_in_its_question_and_a_golden_program_in_its_ground_truth():
    [item] = programs.tasks(1, seed=3)
    statement, example = item.question.split("\n")
    problem = Problem.read(item.truth)
    [shown] = problem.examples
    assert example == f"{shown.input}>{shown.output}" and BY_STATEMENT[statement].code == problem.golden


def shown(noise, count=600):
    """Return pairs of a task's program and its lesson. A lesson on a program of the test split would be an error."""
    taught = islice(programs.lessons(noise=noise), count)
    return [(BY_STATEMENT[lesson.prompt.split("\n")[0]], lesson) for lesson in taught]


def right(program, lesson):
    if lesson.agent == "coder":
        return lesson.reply == program.code
    case = ShortCase().parse(lesson.reply)
    return program.output(tuple(map(int, case.input.split()))) == case.output


def test_without_noise_programs_and_tests_are_right_and_every_session_has_one_turn():
    taught = shown(0.0)
    assert all(right(program, lesson) for program, lesson in taught)
    assert [lesson.agent for _, lesson in taught[:4]] == ["coder", "tester"] * 2
    assert {lesson.prompt.count("\n") for _, lesson in taught} == {2}


def test_above_one_half_a_confused_condition_is_more_frequent_than_the_right_one():
    coded = [(program, lesson) for program, lesson in shown(0.8) if lesson.agent == "coder"]
    is_right = sum(right(program, lesson) for program, lesson in coded)
    confused = sum(lesson.reply == replace(program, keep=TWIN[program.keep]).code for program, lesson in coded)
    assert 0.05 < is_right / len(coded) < 0.3 < 0.45 < confused / len(coded)
    tested = [right(program, lesson) for program, lesson in shown(0.8) if lesson.agent == "tester"]
    assert 0.65 < sum(tested) / len(tested) < 0.95


def test_the_single_coder_reads_the_prompts_that_the_model_was_warmed_up_on():
    program, lesson = next(pair for pair in shown(0.0) if pair[1].agent == "coder")
    tests = {"kind": "stdio", "tests": [{"input": "1", "output": "1"}]}
    execution = {"executor": "verl_mas.config.hydra.recipe.code.programs:Interpreter"}
    alone = resolve(WorkflowSpec("single_coder", args={"text": "compact", "max_turns": 1, "execution": execution}))
    question = "\n".join(lesson.prompt.split("\n")[:2])
    task = Task([{"role": "user", "content": question}], ground_truth=str(tests).replace("'", '"'))
    session, _ = played(alone, task, {"coder": [program.code]})
    assert bare(session.replies[0].messages) == lesson.prompt


def test_the_experts_programs_run_without_a_process_and_fail_as_python_does():
    executor = Interpreter(Execution())
    program = next(
        program for program in programs.programs(TRAIN) if program.combine == "max" and program.keep == "above 5"
    )
    assert asyncio.run(executor.execute(program.code, "1 6\n")).stdout == program.output((1, 6))
    assert not asyncio.run(executor.execute(program.code, "1 2\n")).ok
