import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from verl_mas.environment.execution.contained import seccomp
from verl_mas.environment.execution.contained.seccomp import ALLOW, ENOSYS, EPERM, KILL, RULES, TRAP, X32

X86_64, I386, AARCH64 = 0xC000003E, 0x40000003, 0xC00000B7
FILTER = seccomp.program()


def answer(number: int, *arguments: int, architecture: int = X86_64, code: list[seccomp.Instruction] = FILTER) -> int:
    """Interpret the instructions of the filter, and return what the kernel would do."""
    words = [number, architecture, 0, 0]
    for value in (*arguments, 0, 0, 0, 0, 0, 0)[:6]:
        words += [value & 0xFFFFFFFF, value >> 32 & 0xFFFFFFFF]
    at, accumulator = 0, 0
    while True:
        step = code[at]
        at += 1
        if step.code == 0x20:
            assert step.value % 4 == 0
            accumulator = words[step.value // 4]
        elif step.code == 0x54:
            accumulator &= step.value
        elif step.code == 0x15:
            at += step.yes if accumulator == step.value else step.no
        elif step.code == 0x35:
            at += step.yes if accumulator >= step.value else step.no
        else:
            assert step.code == 0x06
            return step.value


def test_the_kernel_accepts_the_size_of_the_filter():
    assert len(FILTER) <= 4096 and all(0 <= step.yes < 256 and 0 <= step.no < 256 for step in FILTER)


def test_exactly_the_listed_calls_are_allowed_whatever_their_arguments():
    unconditional = {n for n in range(2000) if answer(n, *[2**64 - 1] * 6) == answer(n) == ALLOW}
    assert unconditional == set(seccomp.ALLOWED.values())
    rules = {rule.number for rule in RULES.values()}
    assert {n for n in range(2000) if answer(n) != EPERM} <= set(seccomp.ALLOWED.values()) | rules


def test_numbers_of_other_interfaces_and_other_architectures_end_the_program():
    assert {answer(number) for number in (X32, X32 + 57, 2**32 - 1)} == {KILL}
    assert answer(0, architecture=I386) == answer(0, architecture=AARCH64) == KILL


THREAD = 0x3D0F00


@pytest.mark.parametrize(
    ("number", "arguments", "expected"),
    [
        (56, [THREAD], ALLOW),
        (56, [THREAD | 0x10000000], EPERM),  # a new user namespace
        (56, [17], EPERM),  # fork
        (435, [THREAD], ENOSYS),
        (262, [0, 0, 0, 0x1100], TRAP),
        (262, [0, 0, 0, 0], EPERM),
        (16, [0, 0x5412], EPERM),  # TIOCSTI
        (72, [0, 8], EPERM),  # F_SETOWN
        (302, [0, 7, 0], ALLOW),
        (302, [1, 7, 0], EPERM),
        (302, [0, 7, 1 << 32], EPERM),
        (228, [(~1 << 3 | 2) & 0xFFFFFFFF], EPERM),  # the clock of process 1
    ],
)
def test_conditions_on_arguments(number, arguments, expected):
    assert answer(number, *arguments) == expected


@given(
    st.sampled_from(list(RULES.values())),
    st.lists(st.integers(0, 2**64 - 1) | st.integers(0, 70000) | st.just(THREAD), min_size=6, max_size=6),
)
@settings(max_examples=500, deadline=None)
def test_a_rule_holds_if_all_its_tests_do(rule, arguments):
    words = [(value & 0xFFFFFFFF, value >> 32) for value in arguments]
    holds = bool(rule.tests) and all(words[test.argument][test.high] & test.mask in test.values for test in rule.tests)
    assert answer(rule.number, *arguments) == (rule.yes if holds else rule.no)
