"""Lists the settings of a dataclass, each with its path, type, default and meaning."""

import ast
import inspect
import itertools
import json
import textwrap
from collections.abc import Iterator
from dataclasses import MISSING, Field, dataclass, fields, is_dataclass
from typing import cast, get_args, get_origin, is_typeddict

from verl_mas.config.values import MAPPINGS, Hint, core_type, describe, settable


@dataclass(frozen=True)
class Setting:
    path: str
    takes: str
    default: str
    meaning: str

    def __str__(self) -> str:
        head = f"{self.path}: {self.takes}" + (f" (default {self.default})" if self.default else "")
        return "\n".join([head, *textwrap.wrap(self.meaning, 116, initial_indent="    ", subsequent_indent="    ")])


def settings(kind: Hint, path: str) -> Iterator[Setting]:
    """List the settings of a dataclass or a TypedDict and of its nested sections, in the order of the fields."""
    meanings = field_meanings(kind)
    declared = {item.name: item for item in fields(kind)} if is_dataclass(kind) else {}
    for name, hint in settable(kind).items():
        core, below = core_type(hint), f"{path}.{name}"
        if get_origin(core) in MAPPINGS:
            core, below = core_type(get_args(core)[1]), f"{below}.<name>"
        # The dataclass or TypedDict that the field holds, if any.
        section = core if is_dataclass(core) or is_typeddict(core) else None
        docstring = (section.__doc__ or "") if isinstance(section, type) else ""
        if isinstance(section, type) and docstring.startswith(f"{section.__name__}("):
            docstring = ""  # `dataclass` generated it from the signature
        meaning = meanings.get(name) or docstring
        default = _default(declared[name]) if name in declared else ""
        yield Setting(f"{path}.{name}", describe(hint), default, " ".join(meaning.split()))
        if section:
            yield from settings(section, below)


def field_meanings(kind: Hint) -> dict[str, str]:
    """Return the docstring below each field, including the fields of base classes. A class whose source is missing
    adds nothing."""
    found: dict[str, str] = {}
    for base in reversed(cast(type, kind).__mro__):
        try:
            source = inspect.getsource(base)
        except (OSError, TypeError):  # built in, or defined in a console
            continue
        [definition] = ast.parse(textwrap.dedent(source)).body
        assert isinstance(definition, ast.ClassDef)
        for declared, below in itertools.pairwise(definition.body):
            match declared, below:
                case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(value=ast.Constant(value=str(text))):
                    found[name] = text
    return found


def _default(declared: Field[object]) -> str:
    """Format a default as in YAML. A section gets an empty string, because its settings have their own defaults."""
    if declared.default is MISSING:
        return "" if declared.default_factory is not MISSING else "none: it must be set"
    plain = isinstance(declared.default, str) and declared.default
    return str(declared.default) if plain else json.dumps(declared.default, default=str)


def defaults(kind: Hint) -> dict[str, object]:
    """Return the default of every setting of a dataclass and of its nested sections. The default of a mapping whose
    keys the user chooses is None."""
    found: dict[str, object] = {}
    for item in fields(kind) if is_dataclass(kind) else ():
        section = core_type(settable(kind)[item.name])
        if item.default is not MISSING:
            found[item.name] = item.default
        else:
            found[item.name] = [] if item.default_factory is list else defaults(section) or None
    return found
