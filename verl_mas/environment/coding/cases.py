"""A test that an agent writes: an input and the expected output. It is read as data, never as code."""

from __future__ import annotations

import json
from dataclasses import dataclass

from verl_mas.environment.execution.contained import harness
from verl_mas.environment.execution.limits import Call, Plain
from verl_mas.environment.execution.problem import Problem
from verl_mas.environment.execution.unit_tests import Returns, Stdio, Test
from verl_mas.workflow import Malformed, Tag
from verl_mas.workflow.codecs import checked, finite, refuse, visible

INPUT, OUTPUT = Tag("input"), Tag("output")


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
