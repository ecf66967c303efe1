"""From the `mas:` node of a configuration to `MasConfig`, refusing what does not fit."""

from __future__ import annotations

import types
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from typing import Annotated, Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from omegaconf import DictConfig, OmegaConf

from verl_mas.config.schema import DEFAULT_POLICY, DEFAULT_POOL, MasConfig, PolicySpec, PoolSpec, Range
from verl_mas.errors import ConfigError
from verl_mas.registry import nearest

T = TypeVar("T")


def load(node: DictConfig | Mapping[str, Any] | None) -> MasConfig:
    """The `mas:` block as dataclasses, with the default policy and pool filled in.

    Raises ConfigError for an unknown key, a wrong type or a number out of range.
    """
    plain = OmegaConf.to_container(node, resolve=True) if isinstance(node, DictConfig) else node
    config = _dataclass(MasConfig, plain or {}, "mas")
    if not config.policies:
        config.policies[DEFAULT_POLICY] = PolicySpec()
    config.pools.setdefault(DEFAULT_POOL, PoolSpec())
    return config


def _dataclass(kind: type[T], value: Any, path: str) -> T:
    if not isinstance(value, Mapping):
        raise _wrong(path, value, "a mapping")
    hints = get_type_hints(kind, include_extras=True)
    known = [f.name for f in fields(kind)]  # type: ignore[arg-type]
    for key in value:
        if key not in known:
            raise ConfigError(
                f"{path}.{key} is not a setting",
                rule=f"{path} takes the settings of {kind.__name__} only",
                fix=nearest(str(key), known),
            )
    # An explicit null means "the default", so that a group file can be cleared on the command line.
    given = {k: v for k, v in value.items() if v is not None}
    return kind(**{k: _value(hints[k], v, f"{path}.{k}") for k, v in given.items()})


def _value(hint: Any, value: Any, path: str) -> Any:
    origin = get_origin(hint)
    if origin in (Union, types.UnionType):
        (inner,) = (a for a in get_args(hint) if a is not type(None))
        return _value(inner, value, path)
    if origin is Annotated:
        inner, bounds = get_args(hint)
        return _in_range(_value(inner, value, path), bounds, path)
    if origin is Literal:
        return _choice(get_args(hint), value, path)
    if origin is dict:
        return _mapping(get_args(hint)[1], value, path)
    if origin is list:
        if not isinstance(value, list):
            raise _wrong(path, value, "a list")
        return [_value(get_args(hint)[0], item, f"{path}[{i}]") for i, item in enumerate(value)]
    if is_dataclass(hint):
        return _dataclass(hint, value, path)  # type: ignore[arg-type]
    return _scalar(hint, value, path)


def _mapping(inner: Any, value: Any, path: str) -> dict[str, Any]:
    if not isinstance(value, Mapping):
        raise _wrong(path, value, "a mapping")
    if inner is Any:
        return dict(value)
    # `policies: {solver: null}` is the natural way to name a policy that changes nothing.
    return {str(k): _value(inner, {} if v is None else v, f"{path}.{k}") for k, v in value.items()}


def _scalar(kind: type, value: Any, path: str) -> Any:
    if kind is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    if isinstance(value, kind) and (kind is bool or not isinstance(value, bool)):
        return value
    raise _wrong(path, value, {str: "text", int: "a whole number", float: "a number", bool: "true or false"}[kind])


def _choice(choices: tuple[str, ...], value: Any, path: str) -> str:
    if value in choices:
        return value
    raise ConfigError(
        f"{path}={value!r} is not a choice",
        rule=f"{path} is one of {', '.join(choices)}",
        fix=nearest(str(value), list(choices)),
    )


def _in_range(value: Any, bounds: Range, path: str) -> Any:
    if bounds.holds(value):
        return value
    raise ConfigError(
        f"{path}={value!r} is out of range", rule=f"{path} is {bounds}", fix=f"set {path} to a value {bounds}"
    )


def _wrong(path: str, value: Any, wanted: str) -> ConfigError:
    return ConfigError(
        f"{path}={value!r} is a {type(value).__name__}",
        rule=f"{path} is {wanted}",
        fix=f"write {path} as {wanted}",
    )
