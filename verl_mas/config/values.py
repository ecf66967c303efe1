"""Validates a user's values against the types, ranges and choices of dataclass fields, and makes the dataclasses.

Examples of fields: `k: Annotated[int, Range(1)]`, `score: Literal["em", "f1"]`. A field of any other type, such as a
class of the user or `Callable`, accepts any value.
"""

from __future__ import annotations

import functools
import inspect
import math
import numbers
import sys
import types
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import MISSING, dataclass, fields, is_dataclass
from typing import (
    Annotated,
    Any,
    Literal,
    TypeAlias,
    TypeVar,
    Union,
    cast,
    get_args,
    get_origin,
    get_type_hints,
    is_typeddict,
)

from verl_mas.config.registry import nearest
from verl_mas.errors import ConfigError, raise_all

T = TypeVar("T")
Hint: TypeAlias = object  # an annotation: `int`, `int | None`, `Annotated[...]`

SCALARS = {str: "text", int: "a whole number", float: "a finite number", bool: "true or false"}
LISTS = (list, tuple, Sequence)
MAPPINGS = (dict, Mapping)


class ValueRule:
    """A rule in `Annotated` that a value must meet in addition to its type. Its `str` completes "is ..."."""

    def holds(self, value: Any) -> bool:
        raise NotImplementedError


@dataclass(frozen=True)
class Range(ValueRule):
    """Inclusive bounds of a number."""

    low: float | None = None
    high: float | None = None

    def holds(self, value: float) -> bool:
        return (self.low is None or value >= self.low) and (self.high is None or value <= self.high)

    def __str__(self) -> str:
        if self.low is not None and self.high is not None:
            return f"between {self.low:.12g} and {self.high:.12g}"
        return f"at least {self.low:.12g}" if self.low is not None else f"at most {self.high:.12g}"


@dataclass(frozen=True)
class Above(ValueRule):
    """An exclusive lower bound."""

    low: float

    def holds(self, value: float) -> bool:
        return value > self.low

    def __str__(self) -> str:
        return f"above {self.low:.12g}"


@dataclass(frozen=True)
class Below(ValueRule):
    """An exclusive upper bound."""

    high: float

    def holds(self, value: float) -> bool:
        return value < self.high

    def __str__(self) -> str:
        return f"below {self.high:.12g}"


@dataclass(frozen=True)
class Length(Range):
    """Range of the length of a string in characters, or of a list in items."""

    def holds(self, value: Any) -> bool:
        return super().holds(len(value))

    def __str__(self) -> str:
        return "not empty" if self == Length(1) else f"of length {super().__str__()}"


Count = Annotated[int, Range(1)]
NotNegative = Annotated[float, Range(0)]
Positive = Annotated[float, Above(0)]
Share = Annotated[float, Range(0, 1)]
# Ranges of sampling settings in which an engine does not turn a score into infinity.
Temperature = Annotated[float, Range(0, 100)]
Penalty = Annotated[float, Range(0.01, 100)]
Text = Annotated[str, Length(1)]


def load_dataclass(kind: type[T], values: object, path: str) -> T:
    """Make a `kind` from `values`, a mapping or None. Raises one error with all values that do not fit. `path` names
    the mapping in messages.

    A null resets a field: to None if the field accepts None, else to its default.
    """
    reader = _Reader()
    made = reader.read(kind, {} if values is None else values, path)
    raise_all(reader.errors)
    return cast(T, made)


def check_fields(made: object, path: str) -> None:
    """Check the fields of a dataclass that code constructs, by the rules of `load_dataclass`. Call this in
    `__post_init__`."""
    assert is_dataclass(made)
    reader, hints = _Reader(), settable(type(made))
    for item in fields(made):
        value = getattr(made, item.name)
        # Do not check a default of None, because it is allowed even if the annotation has no `| None`.
        if item.name in hints and not (value is None and item.default is None):
            reader.read(hints[item.name], value, f"{path}.{item.name}")
    raise_all(reader.errors)


def problems(hint: Hint, value: object, path: str) -> list[ConfigError]:
    """List the errors of a value for a type; empty if the type accepts the value."""
    reader = _Reader()
    reader.read(hint, value, path)
    return reader.errors


def describe(hint: Hint) -> str:
    """Describe the values of a type, to complete "is ...": `a whole number, at least 1`."""
    kind, args = get_origin(hint) or hint, get_args(hint)
    if kind is Annotated:
        return ", ".join([describe(args[0]), *(str(rule) for rule in args[1:] if isinstance(rule, ValueRule))])
    if kind in (Union, types.UnionType):
        return ", or ".join("null" if arg is types.NoneType else describe(arg) for arg in args)
    if kind is Literal:
        return f"one of {', '.join(map(str, args))}" if len(args) > 1 else str(args[0])
    if kind in LISTS:
        return f"a list, each item {describe(args[0])}" if args and args[0] is not Any else "a list"
    if kind in MAPPINGS or is_dataclass(kind) or is_typeddict(kind):
        return "a mapping"
    if _is_scalar(kind):
        return next(text for scalar, text in SCALARS.items() if scalar is kind)
    return "any value" if kind in (Any, object) else str(getattr(kind, "__name__", kind))


@functools.cache
def field_types(kind: Hint) -> dict[str, Hint]:
    """Return the evaluated annotation of every field; `object` if it cannot be evaluated at run time."""
    found: dict[str, Hint] = {}
    for base in reversed(cast(type, kind).__mro__):
        scope = getattr(sys.modules.get(base.__module__), "__dict__", {})
        for name, annotation in inspect.get_annotations(base).items():
            holder = type("Holder", (), {"__annotations__": {name: annotation}})
            try:
                found[name] = get_type_hints(holder, globalns=scope, include_extras=True)[name]
            except (NameError, AttributeError):
                found[name] = object
    return found


# Stands for a refused value; the error is in the errors of the reader.
_REFUSED = object()


class _Reader:
    """Reads values by their types, and collects the errors."""

    def __init__(self) -> None:
        self.errors: list[ConfigError] = []

    def read(self, hint: Hint, value: object, path: str) -> object:
        if hint in (Any, object):
            return value
        if value is None and _takes_none(hint):
            return None
        core, rules = _core(hint)
        if _is_scalar(core) or get_origin(core) in (Literal, Union, types.UnionType):
            found = _simple(core, value, path)
            if found is _REFUSED:
                return self._refuse(hint, value, path)
        else:
            found = self._compound(core, value, path)
        if found is _REFUSED or all(rule.holds(found) for rule in rules):
            return found
        return self._refuse(hint, value, path)

    def _compound(self, hint: Hint, value: object, path: str) -> object:
        kind, args = get_origin(hint) or hint, get_args(hint)
        if kind in LISTS:
            if not isinstance(value, list | tuple):
                return self._refuse(hint, value, path)
            fixed = kind is tuple and args and args[-1] is not ...
            each = list(args) if fixed else [args[0] if args else object] * len(value)
            if len(each) != len(value):
                return self._refuse(hint, value, path)
            items = [
                self.read(one, item, f"{path}[{i}]") for i, (one, item) in enumerate(zip(each, value, strict=True))
            ]
            return _whole(items if kind is list else tuple(items), items)
        if kind in MAPPINGS:
            if not isinstance(value, Mapping):
                return self._refuse(hint, value, path)
            inner = args[1] if args else object
            found = {str(key): self.read(inner, item, f"{path}.{key}") for key, item in value.items()}
            return _whole(found, found.values())
        if is_typeddict(kind) or is_dataclass(kind):
            return self._fields(kind, value, path)
        return value

    def _fields(self, kind: Hint, value: object, path: str) -> object:
        """Make a dataclass, or the mapping of a TypedDict, from a mapping of its fields."""
        kind = cast(type, kind)
        if not is_typeddict(kind) and isinstance(value, kind):
            return value
        # `policies: {solver: null}` names a policy without settings, so None is an empty mapping.
        value = {} if value is None else value
        if not isinstance(value, Mapping):
            return self._refuse(kind, value, path)
        before, hints = len(self.errors), settable(kind)
        found = {}
        for key, item in value.items():
            if key not in hints:
                rule, fix = f"{path} takes the settings of {kind.__name__} only", nearest(str(key), list(hints))
                self.errors.append(ConfigError(f"{path}.{key} is not a setting", rule=rule, fix=fix))
            elif item is not None or _takes_none(hints[key]):
                found[key] = self.read(hints[key], item, f"{path}.{key}")
        if is_typeddict(kind):
            return found if len(self.errors) == before else _REFUSED
        assert is_dataclass(kind)
        for field in fields(kind):
            required = field.init and field.default is MISSING and field.default_factory is MISSING
            if required and field.name not in found:
                rule = f"{path}.{field.name} is {describe(hints[field.name])}, and has no default"
                self.errors.append(
                    ConfigError(f"{path} has no {field.name}", rule=rule, fix=f"set {path}.{field.name}")
                )
        if len(self.errors) > before:
            return _REFUSED
        try:
            return kind(**found)
        except ConfigError as error:  # from `__post_init__`, which checks fields against each other
            self.errors.append(error)
            return _REFUSED

    def _refuse(self, hint: Hint, value: object, path: str) -> object:
        core = core_type(hint)
        fix = f"set {path} to {describe(hint)}"
        if get_origin(core) is Literal:
            fix = nearest(str(value), [str(choice) for choice in get_args(core)])
        self.errors.append(ConfigError(f"{path}={value!r}", rule=f"{path} is {describe(hint)}", fix=fix))
        return _REFUSED


def settable(kind: Hint) -> dict[str, Hint]:
    """Return the fields that a user may set in a dataclass or a TypedDict, by name, with their types."""
    hints = field_types(kind)
    if is_typeddict(kind):
        return hints
    assert is_dataclass(kind)
    return {item.name: hints[item.name] for item in fields(kind) if item.init}


def _simple(core: Hint, value: object, path: str) -> object:
    """Read a scalar, a choice or a union. The first type of the union that accepts the value reads it."""
    if get_origin(core) is Literal:
        return value if any(type(value) is type(choice) and value == choice for choice in get_args(core)) else _REFUSED
    if core is str or core is bool or (_is_scalar(core) and isinstance(value, bool)):
        return value if isinstance(value, cast(type, core)) and isinstance(value, bool) == (core is bool) else _REFUSED
    if core is int:
        return int(value) if isinstance(value, numbers.Integral) else _REFUSED
    if core is float:
        try:
            number = float(value) if isinstance(value, numbers.Real) else math.nan
        except OverflowError:  # an int of hundreds of digits
            return _REFUSED
        return number if math.isfinite(number) else _REFUSED
    for option in get_args(core):
        if option is types.NoneType:
            continue  # None is handled before; NoneType as a class would accept any value
        trial = _Reader()
        found = trial.read(option, value, path)
        if not trial.errors:
            return found
    return _REFUSED


def _is_scalar(hint: Hint) -> bool:
    return any(hint is kind for kind in SCALARS)  # not `in`: a hint need not be hashable


def _whole(found: object, parts: Iterable[object]) -> object:
    return _REFUSED if any(part is _REFUSED for part in parts) else found


class Checked:
    """Base of sections that code may construct. The constructor refuses values that do not fit their fields."""

    def __post_init__(self) -> None:
        check_fields(self, type(self).__name__)


def core_type(hint: Hint) -> Hint:
    """Return a type without its rules and without `| None`."""
    return _core(hint)[0]


def _core(hint: Hint) -> tuple[Hint, list[ValueRule]]:
    rules: list[ValueRule] = []
    while True:
        some = [arg for arg in get_args(hint) if arg is not types.NoneType]
        if get_origin(hint) is Annotated:
            rules += [rule for rule in some[1:] if isinstance(rule, ValueRule)]
        elif get_origin(hint) not in (Union, types.UnionType) or len(some) != 1:
            return hint, rules
        hint = some[0]


def _takes_none(hint: Hint) -> bool:
    while get_origin(hint) is Annotated:
        hint = get_args(hint)[0]
    return hint in (Any, types.NoneType) or types.NoneType in get_args(hint)
