"""Demonstrations of coder and tester: the team's own prompts, and an expert with mistakes."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from itertools import islice

from verl_mas.coding.cases import ShortCase
from verl_mas.config.schema import WorkflowSpec
from verl_mas.execution.executor import Execution
from verl_mas.gym.programs import TWIN, Interpreter, lessons, programs
from verl_mas.gym.warmup import bare
from verl_mas.testing.scripted_llm import ScriptedLLM
from verl_mas.util.splits import TRAIN
from verl_mas.workflow import Task
from verl_mas.workflow.base import resolve
from verl_mas.workflow.run import run

BY_STATEMENT = {program.statement: program for program in programs(TRAIN)}


def shown(noise, count=600):
    """(task's program, lesson); only programs of the training split are found."""
    return [(BY_STATEMENT[lesson.prompt.split("\n")[0]], lesson) for lesson in islice(lessons(noise=noise), count)]


def right(program, lesson):
    if lesson.agent == "coder":
        return lesson.reply == program.code
    case = ShortCase().parse(lesson.reply)
    return program.output(tuple(map(int, case.input.split()))) == case.output


def test_without_noise_programs_and_tests_are_right_and_every_session_has_one_turn():
    found = shown(0.0)
    assert all(right(program, lesson) for program, lesson in found)
    assert [lesson.agent for _, lesson in found[:4]] == ["coder", "tester"] * 2
    assert {lesson.prompt.count("\n") for _, lesson in found} == {2}


def test_above_one_half_a_confused_condition_is_more_frequent_than_the_right_one():
    coded = [(program, lesson) for program, lesson in shown(0.8) if lesson.agent == "coder"]
    is_right = sum(right(program, lesson) for program, lesson in coded)
    confused = sum(lesson.reply == replace(program, keep=TWIN[program.keep]).code for program, lesson in coded)
    assert 0.05 < is_right / len(coded) < 0.3 < 0.45 < confused / len(coded)
    tested = [right(program, lesson) for program, lesson in shown(0.8) if lesson.agent == "tester"]
    assert 0.65 < sum(tested) / len(tested) < 0.95


def test_noise_leads_to_second_turns_with_the_last_program_and_what_it_printed():
    second = [lesson for _, lesson in shown(0.6) if lesson.agent == "coder" and lesson.prompt.count("\n") > 2]
    assert second
    for lesson in second:
        _, _, program, test, _, role = lesson.prompt.split("\n")
        assert program.startswith("print(") and ">" in test and role == "C"


def test_the_single_coder_reads_the_prompts_that_the_model_was_warmed_up_on():
    program, lesson = next(found for found in shown(0.0) if found[1].agent == "coder")
    tests = {"kind": "stdio", "tests": [{"input": "1", "output": "1"}]}
    execution = {"executor": "verl_mas.gym.programs:Interpreter"}
    alone = resolve(WorkflowSpec("single_coder", args={"text": "compact", "max_turns": 1, "execution": execution}))
    question = "\n".join(lesson.prompt.split("\n")[:2])
    task = Task([{"role": "user", "content": question}], ground_truth=str(tests).replace("'", '"'))
    session = run(alone, task, ScriptedLLM({"coder": [program.code]}))
    assert bare(session.replies[0].messages) == lesson.prompt


def test_the_experts_programs_run_without_a_process_and_fail_as_python_does():
    executor = Interpreter(Execution())
    program = next(program for program in programs(TRAIN) if program.combine == "max" and program.keep == "above 5")
    assert asyncio.run(executor.execute(program.code, "1 6\n")).stdout == program.output((1, 6))
    assert not asyncio.run(executor.execute(program.code, "1 2\n")).ok
