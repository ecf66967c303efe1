"""docs/api-reference.md: signature, docstring, fields and methods of every stable name, in the order of docs/api.md."""

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
# The public API in full

Every name of [the public API](api.md) with its signature, docstring, fields and methods. Generated from the code by
`python scripts/generate_pages.py`.
"""
# A type alias has the docstring of the type.
ALIASES = {"Message"}
# Objects that a session makes, and interfaces: how they are constructed is no part of the API.
NOT_CONSTRUCTED = set("Workflow Team Agent Conversation Reply Session Codec LLMClient Executor Puzzle".split())


def page(root: Path) -> str:
    parts = [HEAD]
    for title, names in groups((root / "docs/api.md").read_text()):
        parts.append(f"## {title}\n")
        parts += [block for name in names for block in (f"### `{name}`\n", *described(name))]
    return "\n".join(parts)


def groups(index: str) -> Iterator[tuple[str, list[str]]]:
    for section in re.split(r"^## ", index, flags=re.MULTILINE)[1:]:
        yield section.splitlines()[0], re.findall(r"^\| `(\w+)` \|", section, re.MULTILINE)


def described(name: str) -> Iterator[str]:
    value = getattr(verl_mas, name)
    if name in ALIASES:
        yield "A chat message: a dict with `role` and `content`.\n"
    elif not isinstance(value, type):
        yield from definition(name, value)
    elif issubclass(value, enum.Enum):
        yield doc(value)
        yield "\n".join(f"- `{member.name}`: `{member.value!r}`" for member in value) + "\n"
    else:
        yield from definition(name, value)
        yield from members(value)


def definition(name: str, value: object) -> Iterator[str]:
    if name not in NOT_CONSTRUCTED:
        yield f"```python\n{'await ' if inspect.iscoroutinefunction(value) else ''}{signature(name, value)}\n```\n"
    yield doc(value)


def members(kind: type) -> Iterator[str]:
    """A table of the fields with a meaning, and each public method and property that we define."""
    meanings = field_meanings(kind)
    if dataclasses.is_dataclass(kind):
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
    if found:
        yield "\n".join(dict.fromkeys(found)) + "\n"


def line(name: str, member: object) -> str | None:
    """A method or property in one line, if it has a docstring."""
    function = member.__func__ if isinstance(member, classmethod | staticmethod) else member
    meaning = " ".join(doc(function).split())
    if meaning and isinstance(function, property):
        return f"`{name}`: {meaning}"
    if meaning and inspect.isfunction(function):
        return f"`{'await ' if inspect.iscoroutinefunction(function) else ''}{signature(name, function)}`: {meaning}"
    return None


def signature(name: str, value: object) -> str:
    """As in the source: annotations without the quotes that postponed evaluation gives them."""
    try:
        found = inspect.signature(value)
    except ValueError:
        return name
    plain = [
        parameter.replace(annotation=Source(parameter.annotation), default=named(parameter.default))
        for parameter in found.parameters.values()
        if parameter.name not in ("self", "cls") and not parameter.name.startswith("_")
    ]
    returns = Source(found.return_annotation) if not isinstance(value, type) else inspect.Signature.empty
    return f"{name}{found.replace(parameters=plain, return_annotation=returns)}"


def named(default: object) -> object:
    """The name of a function: its repr has an address."""
    return Source(default.__name__.lstrip("_")) if inspect.isfunction(default) else default


class Source:
    """An annotation that is printed as it is written."""

    def __new__(cls, annotation: object) -> object:
        if annotation is inspect.Parameter.empty or not isinstance(annotation, str):
            return annotation
        made = super().__new__(cls)
        made.text = annotation
        return made

    def __repr__(self) -> str:
        return self.text


def doc(value: object) -> str:
    """The docstring, as the text of a page."""
    return plain(inspect.getdoc(value) or "") + "\n"
