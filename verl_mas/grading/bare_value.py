r"""Whether an answer states a value, and nothing that math-verify would ignore.

math-verify drops what it does not know and reads what is left: `\neq 7`, `8=7`, `7 \text{ or eight}` and `1 \\ 7` are
all 7 to it. A policy that is rewarded for them learns to write noise. Notation that the ground truth itself uses is
allowed in the answer.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator
from typing import Literal

_COMMAND = re.compile(r"\\([A-Za-z]+|.)", re.DOTALL)
# Commands that are part of a value or only its typography.
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
# A text with a digit is no unit: `7 \\text{8}`.
_TEXT = re.compile(r"\\(?:text\w*|mbox|math\w+)\s*\{([^{}]*)\}")
_WORD = re.compile(r"[A-Za-z]{2,}")

_MATRIX = re.compile(r"\\begin\{(?P<kind>[pbvBV]?matrix|smallmatrix|array)\}.*?\\end\{(?P=kind)\}", re.DOTALL)
# The text before the sign: names of what is asked for, such as `x`, `f(2)`, `a_{10}`, `\angle ABC`, `(x, y)`.
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
# `8 % 7` is not seven: a percent sign ends its number.
_PERCENT_INSIDE = re.compile(r"%\s*[\w\\(]")
_INTERVAL = re.compile(r"[\[(].*,.*[\])]|\\cup|\\infty|∪|∞", re.DOTALL)  # noqa: RUF001


def objection(truth: str, answer: str) -> Literal["wrong", "unreadable"] | None:
    """The value of the grade of an answer that says more, or something else, than a value; None: compare the values."""
    if any(_unreadable(truth, answer)):
        return "unreadable"
    return "wrong" if any(_wrong(truth, answer)) else None


def _unreadable(truth: str, answer: str) -> Iterator[bool]:
    """Rows outside a matrix, boxes in boxes, and notation that has no place in a value."""
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
    """Relations, chains and words that say something else than "it is this value"."""
    yield _compares(answer) and not _is_set(truth)
    yield "=" not in truth and any(not _names(part) for part in _SEPARATOR.split(answer))
    words = {word.lower() for word in _WORD.findall(_COMMAND.sub(" ", answer))}
    several = "," in truth or _SEPARATOR.search(truth) is not None
    allowed = {word.lower() for word in _WORD.findall(truth)} | ({"or", "and"} if several else set())
    yield not words.isdisjoint(_CHANGING_WORDS - allowed)
    yield any(map(_has_digit, _TEXT.findall(answer))) and _has_digit(_TEXT.sub("", answer))
    yield "_" not in truth and _BASE.search(answer) is not None


def _is_set(truth: str) -> bool:
    """Whether the truth is an interval or an inequality, each of which can be written as the other."""
    return _compares(truth) or _INTERVAL.search(truth) is not None


def _compares(text: str) -> bool:
    return not (_RELATION_COMMANDS.isdisjoint(_COMMAND.findall(text)) and _RELATION_SIGNS.isdisjoint(text))


def _has_digit(text: str) -> bool:
    return any(map(str.isdigit, text))


def _names(part: str) -> bool:
    """Whether a part without a sign of equality, or with one that gives a name its value."""
    left, *more = _ASSIGNS.split(part)
    return not more or (len(more) == 1 and _NAME.fullmatch(left) is not None)
