"""The prompts of coders and testers, and the formats of their replies, for language models and for tiny models.

A test that an agent writes is read as data, never as code.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass

from verl_mas.environment.execution.contained import harness
from verl_mas.environment.execution.executor import Call, Plain
from verl_mas.environment.execution.problem import Problem, Returns, Stdio, Test, Verdict
from verl_mas.workflow import CodeBlock, Codec, Malformed, Message, Tag, Task, with_instruction
from verl_mas.workflow.codecs import checked, finite, refuse, visible

INPUT, OUTPUT = Tag("input"), Tag("output")
# Maximum number of characters of a program's output, and of the input or output of a test, in later prompts.
MAX_CHARS, MAX_COMPACT_CHARS = 1_000, 32
# The last line of a compact prompt. It tells a tiny model that has both roles which role to play.
CODER, TESTER = "C", "T"
NOTHING, FAILED = "-", "!"


@dataclass(frozen=True)
class WrittenCase:
    """The input and the expected output, as text. In a test of a function, the input is a JSON list of the arguments,
    and the output is a JSON value."""

    input: str
    output: str

    @classmethod
    def of(cls, test: Test) -> WrittenCase:
        """Convert a test of the problem, to show it in a prompt."""
        if isinstance(test, Stdio):
            return cls(test.input.strip(), test.output.strip())
        keywords = [f"{name}={value!r}" for name, value in test.call.kwargs.items()]
        return cls(", ".join([*map(repr, test.call.args), *keywords]), repr(test.expected))

    def test(self, problem: Problem) -> Test | Malformed:
        """Convert to a test of a program for this problem."""
        first = problem.tests[0]
        if isinstance(first, Stdio):
            return Stdio(f"{self.input}\n", self.output)
        arguments, expected = _value(self.input), _value(self.output)
        if isinstance(arguments, Malformed) or isinstance(expected, Malformed):
            return Malformed("the input and the output are not JSON")
        if not isinstance(arguments, list):
            return Malformed("the input is not a JSON list of arguments")
        return Returns(Call(first.call.function, arguments), expected)


@dataclass(frozen=True)
class TaggedCase:
    """A test as `<input>1 2</input><output>3</output>`."""

    def prompt(self) -> str:
        return f"Write the input between {_around(INPUT)}, and the right output for it between {_around(OUTPUT)}."

    def render(self, value: WrittenCase) -> str:
        text = f"{INPUT.render(value.input)}\n{OUTPUT.render(value.output)}"
        return checked(text, value, self.parse(text))

    def parse(self, text: str) -> WrittenCase | Malformed:
        given, expected = INPUT.parse(text), OUTPUT.parse(text)
        if isinstance(given, Malformed):
            return given
        return expected if isinstance(expected, Malformed) else WrittenCase(given, expected)


@dataclass(frozen=True)
class ShortCase:
    """A test as `1 2>3`, which is the whole reply, for tiny models."""

    def prompt(self) -> str:
        return "Write input>output."

    def render(self, value: WrittenCase) -> str:
        text = f"{value.input}>{value.output}"
        return checked(text, value, self.parse(text))

    def parse(self, text: str) -> WrittenCase | Malformed:
        parts = [part.strip() for part in visible(text).split(">")]
        if len(parts) != 2 or not all(parts):
            return Malformed("not one input>output")
        return WrittenCase(*parts)


def _around(tag: Tag) -> str:
    return f"<{tag.name}> and </{tag.name}>"


def _value(text: str) -> Plain | Malformed:
    """Parse the JSON that a model wrote. Deep nesting and lone surrogates are malformed, because such a value cannot
    reach the executor."""
    try:
        value: Plain = json.loads(text, parse_constant=refuse, parse_float=finite)
        json.dumps(value, ensure_ascii=False).encode()
        harness.dumps([value])
    except (ValueError, RecursionError):
        return Malformed("not JSON")
    return value


@dataclass(frozen=True)
class Feedback:
    """The last turn as an agent reads it: the program, the test, and their results. A part that cannot be parsed is
    None."""

    program: str | None
    case: WrittenCase | None
    verdict: Verdict | None
    example: bool = False  # whether the test is an example of the problem, not a test that a colleague wrote


class Words:
    """Prompts for language models, and the formats of a program and of a test. `solve` makes the coder's prompt.
    `probe` makes the tester's prompt, which does not contain the program."""

    program: Codec[str] = CodeBlock()
    case: Codec[WrittenCase] = TaggedCase()

    def solve(self, task: Task, problem: Problem, last: Feedback | None) -> list[Message]:
        first = problem.tests[0]
        kind = (
            "reads the input from stdin and prints the output"
            if isinstance(first, Stdio)
            else f"defines `{first.call.function}`"
        )
        request = f"Solve the problem with a Python program that {kind}. {self.program.prompt()}"
        return with_instruction(task.messages, f"{_before(last)}{request}" if last else request)

    def probe(self, task: Task, problem: Problem, last: Feedback | None) -> list[Message]:
        before = ""
        if last and last.case:
            before = (
                f"Your last test:\n{_shown(last.case)}\nThe output of a colleague's program: {_result(last.verdict)}\n"
                "Your test or the program is wrong. Correct the test, or write another one.\n\n"
            )
        arguments = " The input is the JSON list of the arguments, and the output is JSON, too."
        request = (
            "Do not solve the problem. Write one test that a right program passes and a wrong one may fail. "
            f"{self.case.prompt()}{arguments if isinstance(problem.tests[0], Returns) else ''}"
        )
        return with_instruction(task.messages, f"{before}{request}")


def _before(last: Feedback) -> str:
    if last.program is None:
        return "Your last reply had no program that could be read.\n\n"
    written = f"Your last program:\n```python\n{last.program}\n```\n\n"
    if last.case is None:
        return f"{written}Your colleague's test could not be read. Correct the program if it is wrong.\n\n"
    tested = f"{_shown(last.case)}\nThe output of your program: {_result(last.verdict)}\n"
    if last.example:
        return f"{written}An example of the problem that it fails:\n{tested}Correct the program.\n\n"
    return f"{written}A colleague's test:\n{tested}The program or the test is wrong. Correct the program if it is.\n\n"


def _shown(case: WrittenCase) -> str:
    return f"<input>{case.input[:MAX_CHARS]}</input>\n<output>{case.output[:MAX_CHARS]}</output>"


def _result(verdict: Verdict | None) -> str:
    if verdict is None:
        return "none, as there is no program"
    if verdict.error is not None:
        return f"none, as it failed: {verdict.error[:MAX_CHARS]}"
    return f"\n{output_of(verdict)[:MAX_CHARS]}"


def output_of(verdict: Verdict) -> str:
    """The text that the program printed or returned."""
    return verdict.got.strip() if isinstance(verdict.got, str) else repr(verdict.got)


@dataclass(frozen=True)
class WholeReply:
    """A codec in which the whole reply is the program."""

    def prompt(self) -> str:
        return "Write the program."

    def render(self, value: str) -> str:
        return value

    def parse(self, text: str) -> str | Malformed:
        return visible(text).strip() or Malformed("an empty reply")


class Compact(Words):
    """`Words` for tiny models. A prompt has the task's text, then one line each for the program, the test, its result
    and the role."""

    program: Codec[str] = WholeReply()
    case: Codec[WrittenCase] = ShortCase()

    def solve(self, task: Task, problem: Problem, last: Feedback | None) -> list[Message]:
        return self._lines(task, [last.program or NOTHING, *self._tested(last)] if last else [], CODER)

    def probe(self, task: Task, problem: Problem, last: Feedback | None) -> list[Message]:
        return self._lines(task, self._tested(last) if last else [], TESTER)

    def _tested(self, last: Feedback) -> list[str]:
        if last.case is None or last.verdict is None:
            return [NOTHING]
        result = FAILED if last.verdict.error is not None else " ".join(output_of(last.verdict).split())
        test = f"{last.case.input[:MAX_COMPACT_CHARS]}>{last.case.output[:MAX_COMPACT_CHARS]}"
        return [test, result[:MAX_COMPACT_CHARS] or NOTHING]

    def _lines(self, task: Task, lines: list[str], role: str) -> list[Message]:
        return [{"role": "user", "content": "\n".join([task.question, *lines, role])}]


PROMPTS: Mapping[str, Words] = {"words": Words(), "compact": Compact()}
