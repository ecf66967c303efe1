"""Checks whether two answers are mathematically equal. There are five grades, and each check is bounded in time and
memory.

Plain numbers are compared here. Everything else goes to math-verify (sympy) in a pool of processes, since a model can
write an answer that keeps sympy busy indefinitely.
"""

from __future__ import annotations

import asyncio
import enum
import functools
import logging
import os
import re
import unicodedata
from collections.abc import Iterator, Set
from dataclasses import dataclass
from fractions import Fraction
from typing import TYPE_CHECKING, Literal, TypeAlias

from verl_mas.config.registry import Extra
from verl_mas.environment.grading import process_pool
from verl_mas.environment.grading.grader import UNKNOWN, unknown
from verl_mas.environment.grading.process_pool import BoundedPool
from verl_mas.errors import DataError, ForeignError, foreign
from verl_mas.workflow.codecs import Boxed, Malformed

if TYPE_CHECKING:
    from latex2sympy2_extended.gen.PSParser import PSParser
    from sympy import Basic


math_verify = Extra("math_verify", "math")
# Competition answers are shorter; a longer text is noise, or an attack on the parser.
MAX_CHARS = 1_000
LIMIT_S = 2.0
CACHED = 20_000  # most grades that a checker remembers


class Grade(enum.Enum):
    """The result of a check by `AnswerChecker`.

    Only CORRECT gets a reward; a run counts the other grades separately.
    """

    CORRECT = "correct"
    WRONG = "wrong"
    UNREADABLE = "unreadable"
    TIMED_OUT = process_pool.TIMED_OUT
    CRASHED = process_pool.CRASHED

    @property
    def checked(self) -> bool:
        """Whether the answer was checked; False if the check timed out or crashed."""
        return self not in (Grade.TIMED_OUT, Grade.CRASHED)


# Answers of each kind, which are checked at the start, because sympy imports modules and fills caches on first use.
WARM_UP = (
    ("\\frac{1}{2}", "0.5"),
    ("\\sqrt{2}", "2^{1/2}"),
    ("x^2+1", "(x+1)^2-2x"),
    ("(1,2)", "(1, 3)"),
    ("[0,1)", "0 \\le x < 1"),
    ("\\{1,2\\}", "1, 2"),
    ("\\text{Evelyn}", "Bob"),
    ("\\frac{\\pi}{3}", "60^\\circ"),
    ("10\\%", "x = 0.1"),
    ("\\begin{pmatrix}1\\\\2\\end{pmatrix}", "\\begin{pmatrix}1\\\\3\\end{pmatrix}"),
)
_Pair: TypeAlias = tuple[str, str | None]  # the ground truth and the answer
_PLAIN_NUMBER = re.compile(r"[+-]?(\d{1,15}|\d{1,3}(,\d{3}){1,4})(\.\d{1,5})?")

_BEFORE = re.compile(r"(?:\s|\$|\\[,;:! ])*")
# Matches the reversed text, because a search for the end of the text would be quadratic in its whitespace.
_AFTER = re.compile(r"(?:[,;:! ]\\|\s|\$|\.(?!\.))*")


def plain_number(text: str) -> Fraction | None:
    """Return the value of "42", "-1,000" or "0.75"; None for anything that needs a parser."""
    return Fraction(text.replace(",", "")) if _PLAIN_NUMBER.fullmatch(text) else None


def clean(text: str) -> str:
    """Remove whitespace and dollar signs at both ends, and a final full stop."""
    return text[_BEFORE.match(text).end() : len(text) - _AFTER.match(text[::-1]).end()]  # type: ignore[union-attr]


def grade_with_sympy(truth: str, answer: str) -> str:
    """Compare two answers with math-verify, and return the value of a `Grade`. The comparison has no time limit, so it
    must run in a process of the pool."""
    from math_verify import ExprExtractionConfig, LatexExtractionConfig, parse, verify

    logging.getLogger("math_verify").setLevel(logging.ERROR)
    parse_in_two_stages()
    targets = (LatexExtractionConfig(boxed_match_priority=0), ExprExtractionConfig())
    # Disable math-verify's own timeouts, which need signals in the main thread and cannot stop C code. The pool limits
    # the time instead.
    expected = parse(f"\\boxed{{{truth}}}", targets, parsing_timeout=None)
    given = parse(f"\\boxed{{{answer}}}", targets, parsing_timeout=None)
    if not expected:
        raise ValueError(f"the ground truth {truth!r} cannot be parsed")
    if not given:
        return Grade.UNREADABLE.value
    equal = not _far_apart(expected[0], given[0]) and verify(expected, given, timeout_seconds=None)
    return Grade.CORRECT.value if equal else Grade.WRONG.value


def parse_in_two_stages() -> None:
    """Make latex2sympy parse faster in this process, with the same syntax trees. Idempotent.

    Symptom: a check takes 20 ms, nearly all of it in ANTLR. Cause: the default prediction mode, LL, analyses the full
    context repeatedly and caches nothing. A parse that succeeds in SLL mode, which caches, gives the same tree (ANTLR's
    documentation of `PredictionMode`), so LL is needed only after SLL has failed.
    """
    from antlr4.atn.PredictionMode import PredictionMode
    from latex2sympy2_extended import latex2sympy2

    # latex2sympy has no option for the mode, so its class is replaced.
    one_stage = latex2sympy2._Latex2Sympy  # noqa: SLF001
    if hasattr(one_stage, "mode"):
        return

    class TwoStages(one_stage):  # type: ignore[misc, valid-type]
        mode = PredictionMode.SLL

        def create_parser(self, latex_str: str) -> PSParser:
            parser: PSParser = super().create_parser(latex_str)
            parser._interp.predictionMode = self.mode  # noqa: SLF001
            return parser

        def parse(self, latex_str: str) -> Basic:
            try:
                with foreign():
                    tree: Basic = super().parse(latex_str)
            except ForeignError:
                self.mode = PredictionMode.LL
                tree = super().parse(latex_str)
            return tree

    latex2sympy2._Latex2Sympy = TwoStages  # noqa: SLF001


def _far_apart(*values: object) -> bool:
    """Whether two real constants differ by far more than math-verify's rounding. If they do, they need not be compared
    by math-verify, whose proofs that two constants differ are slow."""
    import sympy

    constants = []
    for value in values:
        # A percentage is an UnevaluatedExpr, for which math-verify has its own rule.
        if not isinstance(value, sympy.Expr) or value.free_symbols or value.has(sympy.UnevaluatedExpr):
            return False
        constants.append(value.evalf(15))
    a, b = constants
    if not (isinstance(a, sympy.Number) and isinstance(b, sympy.Number) and a.is_finite and b.is_finite):
        return False
    return bool(abs(a - b) > 1e-5 + 1e-10 * abs(a))


def legible(text: str | None) -> str | None:
    """Clean a text; None if it is empty or longer than an answer can be."""
    return (clean(text) or None) if text is not None and len(text) <= MAX_CHARS else None


def ground_truth(value: object) -> str:
    """Return a task's ground truth as text. Refuses a ground truth against which no answer can be checked."""
    if unknown(value):
        return UNKNOWN
    truth = legible(None if value is None else str(value))
    if truth is None:
        given = f"the ground truth {value if value is None else str(value)[:80]!r} of a math task"
        rule = f"an answer is checked against a ground truth of 1 to {MAX_CHARS} characters"
        raise DataError(given, rule=rule, fix="prepare the data with `verl-mas data math`, or remove such rows")
    return truth


@dataclass(frozen=True)
class BoxedAnswer(Boxed):
    """A codec for a box that must not be empty."""

    def parse(self, text: str) -> str | Malformed:
        boxed = super().parse(text)
        if isinstance(boxed, Malformed):
            return boxed
        return legible(boxed) or Malformed("a box without an answer")


@dataclass
class AnswerChecker:
    """Compares answers with ground truths in separate processes, within a time limit."""

    workers: int = max(2, (os.cpu_count() or 2) // 4)
    limit_s: float = LIMIT_S

    def __post_init__(self) -> None:
        math_verify.require()
        self._pool = BoundedPool(
            f"{__name__}:grade_with_sympy", workers=self.workers, limit_s=self.limit_s, warm_up=WARM_UP
        )
        # Sessions of one task often give the same answer.
        self._cache: dict[_Pair, Grade] = {}
        self._timed_out: set[_Pair] = set()

    def grade(self, truth: object, answer: str | None) -> Grade:
        """Grade the text in the answer's box; None stands for a reply without a box. Blocks the thread."""
        pair = ground_truth(truth), legible(answer)
        return self._without_pool(pair) or self._result(pair, self._pool.submit(*pair).result())

    async def agrade(self, truth: object, answer: str | None) -> Grade:
        """Grade as `grade` does, without blocking the event loop."""
        pair = ground_truth(truth), legible(answer)
        grade = self._without_pool(pair)
        return grade or self._result(pair, await asyncio.wrap_future(self._pool.submit(*pair)))

    def close(self) -> None:
        self._pool.close()

    def _without_pool(self, pair: _Pair) -> Grade | None:
        """Return the grade if neither sympy nor a process is needed, else None."""
        truth, answer = pair
        if answer is None or truth == UNKNOWN:
            return Grade.UNREADABLE
        if answer == truth:
            return Grade.CORRECT
        expected, given = plain_number(truth), plain_number(answer)
        if expected is not None and given is not None:
            return Grade.CORRECT if expected == given else Grade.WRONG
        if (objected := objection(truth, answer)) is not None:
            return Grade(objected)
        return self._cache.get(pair)

    def _result(self, pair: _Pair, result: str) -> Grade:
        grade = Grade(result)
        # A first timeout may be due to a busy machine, so it is not cached. A second timeout is cached, because the
        # answer would cost the whole time limit each time.
        if grade.checked or pair in self._timed_out:
            if len(self._cache) >= CACHED:
                self._cache.pop(next(iter(self._cache)))
            self._cache[pair] = grade
            self._timed_out.discard(pair)
        elif grade is Grade.TIMED_OUT:
            self._timed_out.add(pair)
        return grade


@functools.cache
def shared_checker() -> AnswerChecker:
    """Return the checker of this process."""
    return AnswerChecker()


# The functions below check that an answer states a value, and contains nothing that math-verify would ignore.
#
# math-verify drops notation that it does not know and reads the rest, so it reads `\neq 7`, `8=7`, `7 \text{ or eight}`
# and `1 \\ 7` as 7. A policy that is rewarded for such answers learns to write noise. Notation that the ground truth
# itself uses is allowed in the answer.

_COMMAND = re.compile(r"\\([A-Za-z]+|.)", re.DOTALL)
# Commands that are part of a value or of its typography.
_VALUE_COMMANDS = frozenset(
    """
    frac dfrac tfrac cfrac sqrt root binom dbinom tbinom cdot times div ast star pm mp circ degree prime
    pi infty in sum prod int deg det exp ln log lg
    sin cos tan cot sec csc sinh cosh tanh arcsin arccos arctan
    alpha beta gamma delta epsilon varepsilon zeta eta theta vartheta iota kappa lambda mu nu xi rho sigma tau upsilon
    phi varphi chi psi omega Gamma Delta Theta Lambda Xi Pi Sigma Upsilon Phi Psi Omega ell
    overline bar vec hat widehat overrightarrow angle triangle Re Im i
    left right big Big bigg Bigg bigl bigr Bigl Bigr lfloor rfloor lceil rceil langle rangle lbrace rbrace lvert rvert
    text textbf textit textrm textup mbox mathrm mathbf mathit mathsf mathbb mathcal operatorname boldsymbol
    displaystyle textstyle limits quad qquad begin end
    """.split()
) | set(",;:! {}%$_&|\n")
_RELATION_COMMANDS = frozenset(
    """
    ne neq not lt gt le leq leqslant leqq ge geq geqslant geqq ll gg sim simeq approx cong equiv propto doteq
    nless ngtr nleq ngeq nsim prec succ to mapsto implies iff Rightarrow Leftarrow Leftrightarrow rightarrow
    """.split()
)
_RELATION_SIGNS = frozenset("<>≠≤≥≪≫≈≃≅≡∼∝→⇒⇔↦")  # noqa: RUF001
_VALUE_SIGNS = frozenset("+=|~^×÷−±∓∞√∈·⋅∗∑∏∫∠°")  # noqa: RUF001

# Words that change what a value says. Units and nouns do not: `7 \text{ cm}` is 7.
_CHANGING_WORDS = frozenset(
    """
    or and either neither nor no not non if unless except but than less more fewer greater smaller larger least most
    about approximately around almost nearly between from any maybe wrong incorrect false mod modulo
    zero one two three four five six seven eight nine ten eleven twelve
    """.split()
)
# A text command with a digit, as in `7 \\text{8}`, is not a unit.
_TEXT = re.compile(r"\\(?:text\w*|mbox|math\w+)\s*\{([^{}]*)\}")
_WORD = re.compile(r"[A-Za-z]{2,}")

_MATRIX = re.compile(r"\\begin\{(?P<kind>[pbvBV]?matrix|smallmatrix|array)\}.*?\\end\{(?P=kind)\}", re.DOTALL)
# The text before an equality sign, if it names the requested quantity: `x`, `f(2)`, `a_{10}`, `\angle ABC`, `(x, y)`.
_NAME = re.compile(
    r"""(?: [A-Za-z] (?:_(?:\{[^{}]*\}|\w))?
          | \\(?:text|mathrm|mathbf|operatorname|overline|vec|hat|bar)\{[A-Za-z\s]+\}
          | \\[A-Za-z]+ | [\s,'|()] | \\[,;:!\ ]
        )+ (?:\([\w\s,]*\))?\s*""",
    re.VERBOSE,
)
_ASSIGNS = re.compile(r"=|\\in(?![A-Za-z])|∈")
_SEPARATOR = re.compile(r",|;|\\q?quad|\\text\{\s*(?:or|and)\s*\}")
# A base of a number, as in `101_2`; base ten changes nothing.
_BASE = re.compile(r"\d\s*_\s*(?!\{10\})")
# `8 % 7` must not be read as 7, so no number, word, command or bracket may follow a percent sign.
_PERCENT_INSIDE = re.compile(r"%\s*[\w\\(]")
_INTERVAL = re.compile(r"[\[(].*,.*[\])]|\\cup|\\infty|∪|∞", re.DOTALL)  # noqa: RUF001


def objection(truth: str, answer: str) -> Literal["wrong", "unreadable"] | None:
    """Return the grade of an answer that does not simply state a value; None if the values must be compared."""
    if any(_unreadable(truth, answer)):
        return "unreadable"
    return "wrong" if any(_wrong(truth, answer)) else None


def _unreadable(truth: str, answer: str) -> Iterator[bool]:
    """Yield whether the answer has rows outside a matrix, boxes in boxes, or notation that is not part of a value."""
    outside = _MATRIX.sub(" ", answer)
    yield ("\\\\" in outside or "\\begin" in outside or "&" in outside.replace("\\&", "")) and "\\begin" not in truth
    yield "boxed" in answer or "fbox" in answer
    operators, operator_signs = ({"cup", "cap"}, set("∪∩")) if _is_set(truth) else (set(), set())  # noqa: RUF001
    commands = _VALUE_COMMANDS | _RELATION_COMMANDS | {"\\"} | operators | set(_COMMAND.findall(truth))
    yield not commands.issuperset(_COMMAND.findall(answer))
    signs = set(answer) - _VALUE_SIGNS - _RELATION_SIGNS - operator_signs - set(truth)
    yield any(unicodedata.category(sign) == "Sm" for sign in signs)
    yield answer.count("|") % 2 == 1 and "|" not in truth
    yield _PERCENT_INSIDE.search(answer) is not None


def _wrong(truth: str, answer: str) -> Iterator[bool]:
    """Yield whether the answer has relations, chains or words that say more than "it is this value"."""
    yield _compares(answer) and not _is_set(truth)
    yield "=" not in truth and any(not _names(part) for part in _SEPARATOR.split(answer))
    # A `\text{or}` or `\text{and}` that contains nothing else separates values. In a longer text, the word changes the
    # meaning.
    joins = {"or", "and"} if "," in truth or _SEPARATOR.search(truth) else set()
    yield not _words(answer, joins).isdisjoint(_CHANGING_WORDS - _words(truth, joins))
    yield any(map(_has_digit, _TEXT.findall(answer))) and _has_digit(_TEXT.sub("", answer))
    yield "_" not in truth and _BASE.search(answer) is not None


def _words(text: str, joins: Set[str]) -> set[str]:
    parts = (_TEXT.sub(" ", text), " ".join({each.strip() for each in _TEXT.findall(text)} - joins))
    around, within = ({*_WORD.findall(_COMMAND.sub(" ", part).lower())} for part in parts)
    # `_TEXT` does not match a text command with nested braces, so such a command stays in the first part. An `or` or
    # `and` in it does not separate values, so these words are kept.
    return around | within if re.search(r"\\(text|mbox|mathrm|operatorname)", parts[0]) else (around - joins) | within


def _is_set(truth: str) -> bool:
    """Whether the ground truth is an interval or an inequality. An interval can be written as an inequality, and an
    inequality as an interval."""
    return _compares(truth) or _INTERVAL.search(truth) is not None


def _compares(text: str) -> bool:
    return not (_RELATION_COMMANDS.isdisjoint(_COMMAND.findall(text)) and _RELATION_SIGNS.isdisjoint(text))


def _has_digit(text: str) -> bool:
    return any(map(str.isdigit, text))


def _names(part: str) -> bool:
    """Whether a part has no equality sign, or a single equality sign that assigns a value to a name."""
    left, *more = _ASSIGNS.split(part)
    return not more or (len(more) == 1 and _NAME.fullmatch(left) is not None)
