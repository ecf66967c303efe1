"""The coder and the tester, with programs that run in this process."""

import asyncio

import pytest
from scripted_sessions import IN_PROCESS, acts_of, prompts_of
from scripted_sessions import play as play_workflow

from verl_mas.environment.coding.prompts import TaggedCase, WrittenCase
from verl_mas.environment.coding.team import ProgramAttempt, Runner
from verl_mas.environment.execution.executor import Call
from verl_mas.environment.execution.problem import Problem, Returns, Stdio
from verl_mas.errors import ConfigError, SessionFault
from verl_mas.testing.scripted_llm import ScriptedLLM
from verl_mas.workflow import CodeBlock, Task
from verl_mas.workflows.coder_tester import CaseScore, CoderTester, at_grpo, cure

SUM = "print(sum(map(int, input().split())))"
PRODUCT = "a, b = map(int, input().split())\nprint(a * b)"
# A program that is right unless a number is negative.
POSITIVE = "print(sum(abs(int(x)) for x in input().split()))"
HANGS, CRASHES, NONSENSE = "while True: pass", "print(1 // 0)", "print("
TESTS = (Stdio("2 2\n", "4\n"), Stdio("1 2\n", "3\n"), Stdio("-1 5\n", "4\n"), Stdio("0 0\n", "0\n"))
PROBLEM = Problem(TESTS, examples=TESTS[:1], golden=SUM)
RIGHT, WRONG = ("1 4", "5"), ("1 4", "6")


def code(program: str) -> str:
    return f"I think:\n{CodeBlock().render(program)}"


def case(given: str, expected: str) -> str:
    return TaggedCase().render(WrittenCase(given, expected))


def play(coder, tester, *, k=1, problem=PROBLEM, validate=False, execution=IN_PROCESS, **args):
    of = Task([{"role": "user", "content": "Add the numbers."}], ground_truth=problem.text(), validate=validate)
    workflow = CoderTester(execution=execution, **args)
    return play_workflow(workflow, {"coder": coder, "tester": tester}, of, k=k)


def choose(*texts: str):
    """Reply with one of the texts per candidate."""
    return lambda request, branch: texts[branch]


def test_they_stop_when_the_program_prints_what_the_test_expects():
    session, llm = play(code(SUM), case(*RIGHT))
    assert len(llm.requests) == 2 and session.answer == SUM and session.team_reward == 1.0
    ended = {"acc": 1.0, "share": 1.0, "agreed": 1.0, "turns": 1}
    assert session.info == {**ended, "compiled": 1.0, "tests_right": 1.0}
    # Agreeing on something wrong ends the session, too.
    session, _ = play(code(PRODUCT), case("2 3", "6"))
    assert session.info["agreed"] == 1.0 and session.info["acc"] == 0.0 and session.team_reward == 0.5


def test_without_agreement_the_coder_reads_its_program_the_test_and_what_it_printed():
    session, llm = play([code(PRODUCT), code(SUM)], case(*RIGHT))
    assert session.info["turns"] == 2 and session.info["acc"] == 1.0 and session.info["wrong_programs_caught"] == 1.0
    _, asked = prompts_of(llm, "coder")
    assert PRODUCT in asked and "<input>1 4</input>\n<output>5</output>" in asked and "of your program: \n4\n" in asked


def test_the_tester_reads_what_the_program_printed_and_never_the_program():
    _, llm = play(code(PRODUCT), [case(*WRONG), case(*RIGHT)], max_turns=2)
    asked = prompts_of(llm, "tester")
    assert "Your last test" not in asked[0]
    assert "<output>6</output>" in asked[1] and "of a colleague's program: \n4\n" in asked[1]
    assert not any("print(" in text or "map(" in text for text in asked)


def test_hidden_tests_and_the_golden_program_are_in_no_prompt():
    problem = Problem([Stdio("hidden 1", "secret")], golden="print('gold')")
    _, llm = play(code(PRODUCT), case(*RIGHT), problem=problem)
    for request in llm.requests:
        assert not {"hidden", "secret", "gold"} & set(str(request.messages).replace("'", " ").split())


def test_what_a_program_prints_is_cut_in_prompts():
    _, llm = play(code("print('9' * 60_000)"), case(*RIGHT), max_turns=2)
    assert all(len(str(request.messages)) < 3_000 for request in llm.requests)


def test_a_program_that_fails_on_the_test_is_no_agreement_and_both_read_the_error():
    _, llm = play(code(f"x = 1 / (9 - int(input().split()[0]))\n{SUM}"), case("9 1", "10"), max_turns=2)
    assert all("it failed: error: ZeroDivisionError" in prompt for prompt in prompts_of(llm)[2:])


@pytest.mark.parametrize(
    ("program", "rewards"),
    [
        (code(SUM), 1.0),
        (code(POSITIVE), 0.1 + 0.1 + 0.8 * 0.75),
        (code(HANGS), 0.1),
        (code(NONSENSE), 0.0),
        ("no program", 0.0),
        (code(SUM) + code(PRODUCT), 0.0),
    ],
)
def test_a_coder_is_paid_for_what_compiles_ends_and_passes(program, rewards):
    session, _ = play(program, case(*RIGHT), max_turns=1)
    assert acts_of(session, "coder")[0].reward == pytest.approx(rewards)


@pytest.mark.parametrize(
    ("test", "reward"),
    [
        (case(*RIGHT), 1.0),
        (case(*WRONG), 0.2),
        (case("two", "2"), 0.0),
        ("<input>1 4</input>", 0.0),
        (case(*RIGHT) + case(*WRONG), 0.0),
    ],
)
def test_a_tester_is_paid_for_what_the_golden_program_runs_on_and_prints(test, reward):
    session, _ = play(code(SUM), test, max_turns=1)
    [reply] = acts_of(session, "tester")
    assert reply.reward == pytest.approx(reward) and session.info["tests_right"] == (reward == 1.0)


@pytest.mark.parametrize(("coder", "tester"), [("no program", case(*RIGHT)), (code(SUM), "no test")])
def test_without_a_program_or_a_test_there_is_no_agreement_and_the_next_prompt_says_so(coder, tester):
    session, llm = play(coder, tester, max_turns=2)
    assert session.info["agreed"] == 0.0 and session.info["turns"] == 2
    _, asked = prompts_of(llm, "coder")
    assert ("no program that could be read" in asked) == (coder == "no program")
    assert ("test could not be read" in asked) == (tester == "no test")


def test_of_the_candidates_the_best_is_committed_and_each_has_its_own_team_part():
    session, llm = play(
        choose(code(PRODUCT), code(SUM), "?"), choose(case(*WRONG), "?", case(*RIGHT)), k=3, max_turns=1
    )
    programs, tests = acts_of(session, "coder"), acts_of(session, "tester")
    assert [reply.team_reward for reply in programs] == [0.5, 1.0, 0.0]
    assert [reply.committed for reply in programs] == [False, True, False]
    assert [reply.reward for reply in tests] == pytest.approx([0.2, 0.0, 1.0])
    assert {reply.team_reward for reply in tests} == {1.0}, "that of the committed program"
    assert [reply.committed for reply in tests] == [False, False, True]
    assert session.info["agreed"] == 1.0 and session.info["compiled"] == pytest.approx(2 / 3)
    assert len(llm.requests) == 2


def test_equal_programs_and_inputs_run_once():
    executor = IN_PROCESS.open()
    executor.ran.clear()
    play(code(SUM), case("7 7", "14"), k=4, max_turns=1)
    # The program runs on the first example, the hidden tests and the written test; the golden program on the latter.
    assert len(executor.ran) == 1 + len(TESTS) + 1 + 1


@pytest.mark.parametrize("program", [HANGS, NONSENSE])
def test_a_program_that_does_not_compile_or_end_on_the_first_example_is_not_run_on_the_hidden_tests(program):
    executor = IN_PROCESS.open()
    executor.ran.clear()
    play(code(program), "no test", max_turns=1)
    assert executor.ran == [(program, TESTS[0].input)]


def test_in_validation_hidden_tests_change_no_prompt_no_commit_and_no_stop():
    def acts(hidden):
        problem = Problem([Stdio("1 1", hidden)], golden=SUM)
        session, llm = play(
            [code(PRODUCT), code(PRODUCT), code(SUM)],
            [case(*WRONG), case(*RIGHT)],
            k=4,
            problem=problem,
            validate=True,
        )
        assert all(reply.committed for reply in session.replies)
        return session.info["acc"], [request.messages for request in llm.requests]

    passed, failed = acts("2"), acts("3")
    assert (passed[0], failed[0]) == (1.0, 0.0) and passed[1] == failed[1]


def test_training_without_a_golden_program_is_refused_before_any_agent_acts():
    llm = ScriptedLLM("no reply")
    with pytest.raises(SessionFault, match="tester_reward=cure"):
        play_workflow(CoderTester(execution=IN_PROCESS), llm, Task([], ground_truth=Problem(TESTS).text()))
    assert not llm.requests


@pytest.mark.parametrize("more", [{"tester_reward": "cure"}, {"reward": "sparse"}, {"validate": True}])
def test_a_golden_program_is_needed_only_where_agreement_with_it_is_paid(more):
    assert play(code(SUM), case(*RIGHT), problem=Problem(TESTS), **more)[0].info["acc"] == 1.0
    with pytest.raises(ConfigError, match="pays no single test"):
        CoderTester(reward="sparse", tester_reward="cure")


def test_sparse_pays_only_for_a_program_that_passes_all_hidden_tests():
    session, _ = play(choose(code(SUM), code(POSITIVE)), case(*RIGHT), k=2, reward="sparse")
    assert [(reply.reward, reply.team_reward) for reply in acts_of(session, "coder")] == [(0.0, 1.0), (0.0, 0.0)]
    assert {(reply.reward, reply.team_reward) for reply in acts_of(session, "tester")} == {(0.0, 1.0)}
    assert play(code(POSITIVE), case(*RIGHT), reward="sparse")[0].team_reward == 0.0


def test_cure_without_a_right_program_leaves_the_tests_out_of_training():
    session, _ = play(
        choose(code(POSITIVE), code(PRODUCT)), choose("?", case(*WRONG)), k=2, max_turns=1, tester_reward="cure"
    )
    tests = acts_of(session, "tester")
    assert not any(reply.trainable for reply in tests) and all(reply.trainable for reply in acts_of(session, "coder"))
    assert tests[1].committed, "one that can be read"
    assert "tests_right" not in session.info


def test_the_testers_verdicts_on_programs_are_reported():
    session, _ = play([code(PRODUCT), code(SUM), code(SUM)], [case(*RIGHT), "?", case(*RIGHT)])
    assert session.outcome.verdicts == {"tester": [(False, False), (None, True), (True, True)]}


FUNCTION = Problem(
    [Returns(Call("add", [1, 2]), 3), Returns(Call("add", [-1, 2]), 1)], golden="def add(a, b): return a + b"
)


def test_a_function_is_tested_with_json():
    session, llm = play(
        code("def add(a, b): return a + b"),
        choose(case("[1, 4]", "5"), case("[1, 4]", "6"), case("1, 4", "5"), case("[1, 4]", "add")),
        k=4,
        problem=FUNCTION,
        max_turns=1,
    )
    assert [reply.reward for reply in acts_of(session, "tester")] == pytest.approx([1.0, 0.2, 0.0, 0.0])
    assert [bool(reply.malformed) for reply in acts_of(session, "tester")] == [False, False, True, True]
    asked = prompts_of(llm)
    assert "defines `add`" in asked[0] and "JSON list of the arguments" in asked[1]


def test_a_tiny_model_plays_both_roles_with_short_prompts():
    _, llm = play([PRODUCT, SUM], "2 3>5", text="compact")
    assert prompts_of(llm) == [
        "Add the numbers.\nC",
        "Add the numbers.\nT",
        f"Add the numbers.\n{PRODUCT}\n2 3>5\n6\nC",
        "Add the numbers.\n2 3>5\n6\nT",
    ]


@pytest.mark.parametrize(
    ("coder", "tester", "asked"),
    [("", "2 3>5", ["-\n-\nC", "-\nT"]), (CRASHES, "2 3>5", [f"{CRASHES}\n2 3>5\n!\nC", "2 3>5\n!\nT"])],
)
def test_compact_prompts_mark_what_is_missing_and_what_failed(coder, tester, asked):
    _, llm = play(coder, tester, text="compact", max_turns=2)
    assert [prompt.partition("\n")[2] for prompt in prompts_of(llm)[2:]] == asked


# The task: print the number plus one.
GOLDEN = "print(int(input()) + 1)"
GOOD, ALSO_GOOD = ProgramAttempt(GOLDEN, True, True, 1.0), ProgramAttempt(f"{GOLDEN} # too", True, True, 1.0)
DOUBLES, ZERO = ProgramAttempt("print(int(input()) * 2)", True, True, 0.5), ProgramAttempt("print(0)", True, True, 0.0)
NONE, BROKEN = ProgramAttempt(None), ProgramAttempt("print(")
TELLS, USELESS = Stdio("5", "6"), Stdio("1", "2")
HARMLESS, HARMFUL = Stdio("5", "7"), Stdio("5", "10")


def scores(reward, tests, attempts=()) -> list[CaseScore]:
    problem = Problem([Stdio("1", "2"), Stdio("3", "4")])
    return asyncio.run(reward(Runner.of(problem.text(), IN_PROCESS), tests, attempts))


def test_at_grpo_says_nothing_without_a_golden_program():
    assert scores(at_grpo, [TELLS, None]) == [CaseScore(None, None)] * 2


@pytest.mark.parametrize(
    ("attempts", "expected"),
    [
        ([GOOD, DOUBLES], [1.0, 0.0, 0.0, -1.0, -1.2]),
        ([GOOD, ALSO_GOOD, DOUBLES, ZERO], [1.0, 0.5, 0.0, -0.5, -1.2]),
        ([GOOD, DOUBLES, DOUBLES, NONE, BROKEN], [1.0, 0.5, 0.0, -0.5, -1.2]),
        ([GOOD], [1.0, 1.0, -1.0, -1.0, -1.2]),
    ],
)
def test_cure_pays_for_wrong_programs_that_fail_and_charges_for_those_that_pass(attempts, expected):
    found = scores(cure, [TELLS, USELESS, HARMLESS, HARMFUL, None], attempts)
    assert [score.reward for score in found] == pytest.approx(expected)
    assert [score.right for score in found] == [True, True, False, False, False]
    assert all(score.trained for score in found)


@pytest.mark.parametrize("attempts", [[DOUBLES, ZERO], [NONE]])
def test_cure_knows_nothing_without_a_right_program(attempts):
    found = scores(cure, [TELLS, None], attempts)
    assert found == [CaseScore(0.0, None, trained=False), CaseScore(-1.2, None, trained=False)]
