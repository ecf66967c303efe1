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
from typing import Annotated, Any, Literal, TypeVar, Union, cast, get_args, get_origin, get_type_hints, is_typeddict

from verl_mas.config.registry import nearest
from verl_mas.errors import ConfigError, raise_all

T = TypeVar("T")
Hint = object  # an annotation: `int`, `int | None`, `Annotated[...]`

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


class _Unfit(Exception):
    """A value does not fit its type."""


class _Reader:
    """Reads values by their types, and collects the errors. If there are errors, the value is not used."""

    def __init__(self) -> None:
        self.errors: list[ConfigError] = []

    def read(self, hint: Hint, value: object, path: str) -> object:
        if hint in (Any, object) or (value is None and _takes_none(hint)):
            return value
        core, rules = _core(hint)
        before = len(self.errors)
        try:
            found = self._by_type(core, value, path)
            # Rules are for whole values, so they are skipped if an item of the value was refused.
            if len(self.errors) > before or all(rule.holds(found) for rule in rules):
                return found
        except _Unfit:
            pass
        fix = f"set {path} to {describe(hint)}"
        if get_origin(core) is Literal:
            fix = nearest(str(value), [str(choice) for choice in get_args(core)])
        self.errors.append(ConfigError(f"{path}={value!r}", rule=f"{path} is {describe(hint)}", fix=fix))
        return None

    def _by_type(self, hint: Hint, value: object, path: str) -> object:
        kind, args = get_origin(hint) or hint, get_args(hint)
        if kind is Literal:
            return _fitting(value, any(type(value) is type(choice) and value == choice for choice in args))
        if kind in (Union, types.UnionType):
            return self._first_fitting(args, value, path)
        if _is_scalar(kind):
            return _scalar(kind, value)
        if kind in LISTS:
            items = cast(Sequence[object], _fitting(value, isinstance(value, list | tuple)))
            fixed = kind is tuple and args and args[-1] is not ...
            each = list(args) if fixed else [args[0] if args else object] * len(items)
            _fitting(value, len(each) == len(items))
            read = (self.read(one, item, f"{path}[{i}]") for i, (one, item) in enumerate(zip(each, items, strict=True)))
            return list(read) if kind is list else tuple(read)
        if kind in MAPPINGS:
            mapping = cast(Mapping[object, object], _fitting(value, isinstance(value, Mapping)))
            inner = args[1] if args else object
            return {str(key): self.read(inner, item, f"{path}.{key}") for key, item in mapping.items()}
        return self._fields(kind, value, path) if is_typeddict(kind) or is_dataclass(kind) else value

    def _first_fitting(self, options: Iterable[Hint], value: object, path: str) -> object:
        """Read a value by the first type of a union that accepts it."""
        # `read` has already accepted None. NoneType is skipped, because `_by_type` does not check values of an unknown
        # class, so NoneType would accept any value.
        for option in (option for option in options if option is not types.NoneType):
            trial = _Reader()
            found = trial.read(option, value, path)
            if not trial.errors:
                return found
        raise _Unfit

    def _fields(self, kind: Hint, value: object, path: str) -> object:
        """Make a dataclass, or the mapping of a TypedDict, from a mapping of its fields."""
        kind = cast(type, kind)
        if not is_typeddict(kind) and isinstance(value, kind):
            return value
        # `policies: {solver: null}` names a policy without settings, so None is an empty mapping.
        value = {} if value is None else value
        mapping = cast(Mapping[str, object], _fitting(value, isinstance(value, Mapping)))
        before, hints = len(self.errors), settable(kind)
        found = {}
        for key, item in mapping.items():
            if key not in hints:
                rule, fix = f"{path} takes the settings of {kind.__name__} only", nearest(str(key), list(hints))
                self.errors.append(ConfigError(f"{path}.{key} is not a setting", rule=rule, fix=fix))
            elif item is not None or _takes_none(hints[key]):
                found[key] = self.read(hints[key], item, f"{path}.{key}")
        for field in fields(kind) if is_dataclass(kind) else ():
            required = field.init and field.default is MISSING and field.default_factory is MISSING
            if required and field.name not in found:
                rule, fix = f"{path}.{field.name} is {describe(hints[field.name])}, and has no default", f"set {path}"
                self.errors.append(ConfigError(f"{path} has no {field.name}", rule=rule, fix=f"{fix}.{field.name}"))
        if len(self.errors) > before or is_typeddict(kind):
            return found
        try:
            return kind(**found)
        except ConfigError as error:  # from `__post_init__`, which checks fields against each other
            self.errors.append(error)
            return None


def _fitting(value: object, fits: bool) -> object:
    """Return `value` if it fits its type, else raise `_Unfit`."""
    if not fits:
        raise _Unfit
    return value


def _scalar(kind: Hint, value: object) -> object:
    if kind in (str, bool) or isinstance(value, bool):
        return _fitting(value, isinstance(value, cast(type, kind)) and isinstance(value, bool) == (kind is bool))
    if kind is int:
        return int(cast(int, _fitting(value, isinstance(value, numbers.Integral))))
    try:
        number = float(cast(float, _fitting(value, isinstance(value, numbers.Real))))
    except OverflowError as error:  # an int of hundreds of digits
        raise _Unfit from error
    return _fitting(number, math.isfinite(number))


def settable(kind: Hint) -> dict[str, Hint]:
    """Return the fields that a user may set in a dataclass or a TypedDict, by name, with their types."""
    hints = field_types(kind)
    if is_typeddict(kind):
        return hints
    assert is_dataclass(kind)
    return {item.name: hints[item.name] for item in fields(kind) if item.init}


def _is_scalar(hint: Hint) -> bool:
    return any(hint is kind for kind in SCALARS)  # `in` would fail for a hint that is not hashable


class Checked:
    """Base of dataclasses that code may construct without `load_dataclass`. The constructor refuses values that do not
    fit their fields."""

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
