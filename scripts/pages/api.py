"""Generate docs/write/api.md, with the signature, docstring, fields and methods of every stable name."""

from __future__ import annotations

import dataclasses
import enum
import inspect
import re
from collections.abc import Iterator
from pathlib import Path

import verl_mas
from pages.markdown import cell, plain, table
from verl_mas.config.describe import field_meanings

HEAD = """\
# The public API

    from verl_mas import Outcome, Task, Team, Workflow

These names are stable: a release that changes one lists it in the [changelog](../../CHANGELOG.md). No other name is
stable, whatever module it can be imported from. A name is imported when it is first used, so `import verl_mas` loads
nothing heavy. Only the names under [Advantages](#advantages) load torch. `verl_mas.__version__` is the version.

The page is generated from the code by `python scripts/generate_pages.py`. Methods have the first sentence of their
docstring and no types: `help(verl_mas.Team)` prints the rest, and editors show it. In a signature None as a default
stands for "or None", and `...` for a new object.
"""
# Every name of `verl_mas.__all__`, in the order of the page.
GROUPS = {
    "Teams": (
        "Workflow program Team Agent Conversation Task Reply Outcome Message instances nested with_instruction "
        "Range Above"
    ),
    "Reading replies": "Codec Malformed ActionList Boxed Choice CodeBlock JsonBlock Tag visible between only checked",
    "Trying, running and serving a team": (
        "check_workflow ScriptedLLM run arun run_many load TrainedTeam SessionResult ActText OpenAIClient Session "
        "SessionIndex read_sessions AgentSpec BranchSpec FaultSpec LLMClient Request Generation"
    ),
    "Worlds": "World Observation View",
    "Tools": "Tool ToolResult ToolCall CallContext Folding FoldingRules ToolLimits calls McpServers McpSpec",
    "Advantages": (
        "estimator within AdvantageInput AdvantageOptions AdvantageOutput compute_advantages RunningScores to_tokens"
    ),
    "Running programs": "Execution Executor Limits Result Status Call Answer Stdio Returns run_tests Verdict Problem",
    "Puzzles, graders, retrieval": "Puzzle board grader AnswerChecker Grade RetrieverClient SearchResult Passage",
    "Registering your own": (
        "register_workflow register_commit_rule register_grader register_executor register_puzzle register_engine "
        "register_world"
    ),
    "Errors": "MasError InvalidInput ConfigError DataError WorkflowError SessionFault FaultKind",
}
# Type aliases. An alias has the docstring of its type, so the page describes it differently.
ALIASES = {"Message"}
# Classes whose objects a session makes, and interfaces. Their constructors are not part of the API.
NOT_CONSTRUCTED = set(
    "Workflow Team Agent Conversation Reply Session Codec LLMClient Executor Puzzle Choice World".split()
)
SENTENCE = re.compile(r"(?<=\.) (?=[A-Z`])")
MANY = 4  # A class with more parameters has them listed without types.
# Classes whose methods are called by the package, so the page lists only the names of these methods.
NAMES_ALONE = set("Session RunningScores McpServers RetrieverClient Passage AdvantageInput ToolLimits".split())
# Types of arguments that only a session's `Team` has. A method that takes one of these types is not on the page.
PASSED_BY_TEAMS = re.compile(r"'(Ask|Line|ResolvedAgent)\b")
# Class whose fields are settings -> the anchor of these settings on docs/train/settings.md.
SETTINGS = {
    "AgentSpec": "masagents",
    "BranchSpec": "masbranch",
    "FaultSpec": "masfaults",
    "McpSpec": "masmcp",
    "AdvantageOptions": "masadvantage",
    "Execution": "of-several-workflows",
    "FoldingRules": "folded",
}


def page(root: Path) -> str:
    parts = [HEAD]
    for title, names in GROUPS.items():
        parts.append(f"## {title}\n")
        parts += [block for name in names.split() for block in (f"### `{name}`\n", *described(name))]
    return "\n".join(parts)


def described(name: str) -> Iterator[str]:
    value = getattr(verl_mas, name)
    if name in ALIASES:
        yield "A chat message: a dict with `role` and `content`.\n"
    elif not isinstance(value, type):
        yield from definition(name, value)
    elif issubclass(value, enum.Enum):
        yield doc(value)
        yield f"{', '.join(f'`{member.name}`' for member in value)}.\n"
    else:
        yield from definition(name, value)
        yield from members(value)


def definition(name: str, value: object) -> Iterator[str]:
    if name not in {*NOT_CONSTRUCTED, *SETTINGS} and not constructed_as_its_base(value):
        yield f"`{'await ' if inspect.iscoroutinefunction(value) else ''}{signature(name, value)}`\n"
    yield doc(value)


def constructed_as_its_base(value: object) -> bool:
    """Return whether the value is an exception whose base has the same signature, which the page already shows."""
    base = value.__base__ if isinstance(value, type) else None
    return base is not None and issubclass(base, verl_mas.InvalidInput)


def members(kind: type) -> Iterator[str]:
    """Yield a table of the fields that have a meaning, then the public methods and properties that verl-mas defines."""
    meanings = field_meanings(kind)
    if anchor := SETTINGS.get(kind.__name__):
        yield f"Its fields and their defaults: [settings](../train/settings.md#{anchor}).\n"
    elif dataclasses.is_dataclass(kind):
        rows = [(field.name, meanings.get(field.name)) for field in dataclasses.fields(kind) if field.repr]
        rows = [(f"`{name}`", cell(meaning)) for name, meaning in rows if meaning]
        if rows:
            yield table(("field", ""), rows) + "\n"
    found = [
        f"- {bullet}"
        for base in reversed(kind.__mro__)
        if base.__module__.startswith("verl_mas.")
        for name, member in vars(base).items()
        if not name.startswith("_") and getattr(kind, name, None) is not None and (bullet := line(name, member))
    ]
    if found and kind.__name__ in NAMES_ALONE:
        yield f"Also {', '.join(dict.fromkeys(bullet[2:].partition(': ')[0] for bullet in found))}.\n"
    elif found:
        yield "\n".join(dict.fromkeys(found)) + "\n"


def line(name: str, member: object) -> str | None:
    """Return a method or property in one line.

    Return None if it has no docstring, or if it takes arguments that only a session's `Team` has.
    """
    function = member.__func__ if isinstance(member, classmethod | staticmethod) else member
    if PASSED_BY_TEAMS.search(str(getattr(function, "__annotations__", ""))):
        return None
    meaning = SENTENCE.split(" ".join(doc(function).split()))[0]
    if meaning and isinstance(function, property):
        return f"`{name}`: {meaning}"
    if meaning and inspect.isfunction(function):
        awaited = "await " if inspect.iscoroutinefunction(function) else ""
        return f"`{awaited}{signature(name, function, types=False)}`: {meaning}"
    return None


def signature(name: str, value: object, *, types: bool = True) -> str:
    """Return a signature as in the source, that is, without the quotes of postponed annotations."""
    try:
        found = inspect.signature(value)
    except ValueError:
        return name
    types = types and not (isinstance(value, type) and len(found.parameters) > MANY)
    plain = [
        briefly(parameter if types else parameter.replace(annotation=inspect.Parameter.empty))
        for parameter in parameters(value, found)
        if parameter.name not in ("self", "cls") and not parameter.name.startswith("_")
    ]
    known = types and not isinstance(value, type) and "Callable" not in str(found.return_annotation)
    returns = Source(found.return_annotation) if known else inspect.Signature.empty
    return f"{name}{found.replace(parameters=plain, return_annotation=returns)}"


def parameters(value: object, found: inspect.Signature) -> Iterator[inspect.Parameter]:
    """Yield the parameters. `**settings: Unpack[...]` is replaced by the keywords that it stands for."""
    for parameter in found.parameters.values():
        unpacked = re.fullmatch(r"Unpack\[(\w+)\]", str(parameter.annotation))
        if unpacked is None:
            yield parameter
            continue
        settings = inspect.getmodule(value).__dict__[unpacked[1]].__annotations__
        for name, hint in settings.items():
            text = hint.__forward_arg__
            default = None if text.endswith(" | None") else Source("...")
            yield parameter.replace(name=name, kind=parameter.KEYWORD_ONLY, annotation=text, default=default)


def briefly(parameter: inspect.Parameter) -> inspect.Parameter:
    """Remove the type of a parameter if its default value shows the type."""
    annotation, default = str(parameter.annotation), parameter.default
    if default is None:
        annotation = annotation.removesuffix(" | None")
    made_anew = repr(default) == "<factory>"
    shown = isinstance(default, bool | int | float) or (annotation == "str" and isinstance(default, str))
    kept = inspect.Parameter.empty if shown or parameter.annotation is parameter.empty else Source(annotation)
    return parameter.replace(annotation=kept, default=Source("...") if made_anew else named(default))


def named(default: object) -> object:
    """Return a function's name instead of its repr, which contains an address and changes with each run."""
    return Source(default.__name__.lstrip("_")) if inspect.isfunction(default) else default


class Source:
    """An annotation that is printed as in the source, without quotes."""

    def __new__(cls, annotation: object) -> object:
        if annotation is inspect.Parameter.empty or not isinstance(annotation, str):
            return annotation
        made = super().__new__(cls)
        made.text = annotation
        return made

    def __repr__(self) -> str:
        return self.text


def doc(value: object) -> str:
    """Return the docstring in the page's Markdown."""
    return plain(inspect.getdoc(value) or "") + "\n"
