"""Plain technical English in everything that a reader meets: pages, errors, help texts, docstrings, comments."""

import ast
import io
import re
import tokenize
from collections.abc import Iterator
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[1]
UNITS = "policy|agent|role|row|file|step|session|turn|seed|task|act|arm|pool|GPU|node|line|group|second|replica|engine"
# Phrases to avoid -> replacements.
AVOID = {
    r"\bway out\b": "fix",
    r"\bfor ever\b": "indefinitely",
    r"\bdoors?\b": "hook, extension point",
    r"\bseams?\b": "interface",
    r"\bstrangers?\b": "someone else, unrelated",
    r"\b(lent|lends?|lending)\b": "default, shared",
    r"\bturnstiles?\b": "time slices",
    r"\bmend(s|ed|ing)?\b": "fix, correct",
    r"\bstands? in the way\b": "is missing, prevents",
    r"\bno (?:mapping|number|puzzle|session|reply|engine|module|text|policy|agent)s? (?:itself|own)\b": "is not a ...",
    r"\bis no \w+ (?:itself|of)\b": "is not a ...",
    r"\b(goes|go|went|going) on (with|from|by|token)\b": "resumes, continues",
    r"\bbegins? (anew|again)\b": "restarts",
    r"\b(gives?|gave|given) up\b": "fails, drops",
    rf"\b(?:an?|one|each|every|\d+) (?:\w+ )?(?:{UNITS})s? an? (?:{UNITS})\b": "per: a policy per agent",
    rf"\b\d[\d.,]* ?(?:ns|us|ms|s|min|[KMG]i?B|bytes|rows|tokens|steps|files|lines) an? (?:{UNITS})\b": "per",
    rf"\b(?:rows|acts|sessions|tokens|steps|CPUs|GPUs|seconds) an? (?:{UNITS})\b": "per",
    r"\breckon\w*\b": "estimated",
    r"\bby heart\b": "memorised",
    r"\bnever was\b": "made up, synthetic",
    r"\bhow-many-th\b": "index",
    r"\bsee to\b": "check",
    r"\b(newcomer|novice)s?\b": "new user",
    r"\bhouses?\b": "package, owner",
    r"\bnobody(?:'s)?\b": "none, no ...",
    r"\ba(?= advantage| act\b| agent| engine| estimator| optimiser| executor| adapter| endpoint| answer| error)": "an",
}
# Openings of docstrings and phrases in texts of the package -> how often they may occur. The numbers may only fall.
OPENINGS = {
    r"(Of|By|As|With)\b": 3,
    r"What (?!is wrong)": 44,
    r"(In|To|For|Since|Where|On|At|From)\b": 26,
}
HABITS = {
    r"\b(be|is|are|was|were|been) looked (at|for|up|through)\b": 3,
    r"\b(that|which) (is|are) (none|no \w+)": 7,
    r"\b(told apart|anew|but for|played on)\b": 24,
    r"\bbeside\b": 34,
    r"\bof what\b": 10,
    r"\bwarn(s|ed) of\b": 1,
}
# Names of code that are riddles to a reader.
RIDDLES = {"said", "told", "heard", "shown", "standing", "to_go", "door", "room", "roster", "way_out", "inhabited"}
PAGES = sorted(
    path
    for pattern in ("*.md", "docs/**/*.md", "recipes/*.md", "recipes/*/*.md", "patches/*.md", "benchmarks/*.md")
    for path in ROOT.glob(pattern)
)
MODULES = sorted(
    path for folder in ("verl_mas", "hydra_plugins", "benchmarks", "tests") for path in (ROOT / folder).rglob("*.py")
)


def avoided(text: str) -> list[str]:
    """List each phrase of the text that AVOID has."""
    flat = re.sub(r"\s+", " ", text)
    return [
        f"{match.group()!r} -> {instead}"
        for pattern, instead in AVOID.items()
        for match in re.finditer(pattern, flat, re.IGNORECASE)
    ]


def prose(source: str) -> Iterator[tuple[int, str]]:
    """The texts and comments of a module, with their lines."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and " " in node.value:
            yield node.lineno, node.value
    block: list[str] = []
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            block.append(token.string.lstrip("# "))
        elif token.type not in (tokenize.NL, tokenize.INDENT, tokenize.DEDENT) and block:
            yield token.start[0], " ".join(block)
            block = []


@cache
def prose_of(path: Path) -> list[tuple[int, str]]:
    return list(prose(path.read_text()))


def test_the_list_finds_what_it_names_and_plain_words_pass():
    assert all(map(avoided, ("way out: set x", "a policy an agent", "11 ns a row", "it waits for ever")))
    assert not any(map(avoided, ("fix: set x", "a policy per agent", "an act of an agent", "a row of a session")))


def test_pages_are_plain_english():
    assert [f"{page.relative_to(ROOT)}: {what}" for page in PAGES for what in avoided(page.read_text())] == []


def test_modules_are_plain_english():
    assert [
        f"{module.relative_to(ROOT)}:{line}: {what}"
        for module in MODULES
        if module != Path(__file__)
        for line, text in prose_of(module)
        for what in avoided(text)
    ] == []


def test_docstrings_begin_with_a_verb_or_a_noun():
    kinds = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    nodes = (node for path in MODULES if "verl_mas" in path.parts for node in ast.walk(ast.parse(path.read_text())))
    texts = [text for node in nodes if isinstance(node, kinds) and (text := ast.get_docstring(node))]
    for opening, most in OPENINGS.items():
        fragments = [text for text in texts if re.match(opening, text)]
        assert len(fragments) <= most, fragments


def test_habits_of_the_package_become_rarer():
    texts = [text for path in MODULES if path.is_relative_to(ROOT / "verl_mas") for _, text in prose_of(path)]
    for habit, most in HABITS.items():
        places = [match.group() + " in " + text for text in texts for match in re.finditer(habit, text)]
        assert len(places) <= most, places


def test_names_are_no_riddles():
    for module in (path for path in MODULES if "verl_mas" in path.parts):
        nodes = list(ast.walk(ast.parse(module.read_text())))
        names = {node.id for node in nodes if isinstance(node, ast.Name)}
        names |= {node.arg for node in nodes if isinstance(node, ast.arg)}
        assert not names & RIDDLES, module
