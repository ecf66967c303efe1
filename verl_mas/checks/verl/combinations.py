"""Settings that are sound one by one and cannot be together, and those of verl that no team reads: two tables, and what
reads them.

The head of `combinations.yaml` and of `unread.yaml` say how an entry is written. A check calls `combinations` with the
part of the table that is its own, and with what its conditions name beside settings.
"""

from __future__ import annotations

import json
import operator
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache, reduce
from pathlib import Path
from typing import Any

from omegaconf import MISSING, DictConfig, OmegaConf

from verl_mas.checks.verl.place import unless_elsewhere
from verl_mas.checks.verl.refusals import Problem
from verl_mas.config.merge import SECTION
from verl_mas.config.values import Text, load_dataclass
from verl_mas.config.verl_settings import section_at, verl_settings
from verl_mas.errors import ConfigError, ConfigWarning
from verl_mas.util import read_yaml
from verl_mas.verl_.types import Fields

TABLE = Path(__file__).with_suffix(".yaml")
READERS = TABLE.with_name("unread.yaml")
# Parts of the table: verl's settings that are not read, of the run and of a policy.
UNREAD, UNREAD_BY_POLICY = "unread", "unread_by_policy"
# Below actor_rollout_ref: of a policy.
OF_POLICY = ("model", "actor", "rollout", "ref")
ALTERNATIVES = re.compile(r"\(([\w.{}]+(?:\|[\w.{}]+)+)\)")
NAMED = re.compile(r"\{(\w[\w.]*)\}")
COMPARED: Mapping[str, Callable[[Any, Any], bool]] = {
    "above": operator.gt,
    "least": operator.ge,
    "below": operator.lt,
    "has": operator.contains,
    "lacks": lambda whole, part: part not in whole,
    "no_divisor_of": lambda value, whole: bool(value and whole % value),
}


@dataclass(frozen=True)
class Combination:
    """An entry of the table: refused by a `rule`, or warned of for a `reason`."""

    fix: Text
    together: dict[str, Any] = field(default_factory=dict)
    when: dict[str, Any] = field(default_factory=dict)
    unless: Fields = field(default_factory=dict)
    rule: str = ""
    reason: str = ""
    machine: bool = False  # It is about what is installed here: a warning where the run is on other machines

    def __post_init__(self) -> None:
        assert bool(self.rule) != bool(self.reason) and self.together, self

    def __str__(self) -> str:
        conditions = " and ".join(
            _condition(key, asked) for key, asked in {**self.together, **self.when}.items() if asked != {"not": []}
        )
        return f"{conditions} ({'refused' if self.rule else 'warned of'}): {self.rule or self.reason}"


@cache
def table() -> Mapping[str, list[Combination]]:
    parts = read_yaml(TABLE)
    parts.pop("texts")
    found = {
        part: [load_dataclass(Combination, entry, f"{TABLE.name}: {part}") for one in entries for entry in each(one)]
        for part, entries in parts.items()
    }
    unread = [one for entry in read_yaml(READERS)["entries"] for one in _unread(entry)]
    by_policy = [one for one in unread if next(iter(one.together)).startswith(tuple(f"{head}." for head in OF_POLICY))]
    return {**found, UNREAD_BY_POLICY: by_policy, UNREAD: [one for one in unread if one not in by_policy]}


def _unread(entry: Fields) -> Iterator[Combination]:
    """An entry of `unread.yaml`, for each of its settings."""
    unless, settings = entry.get("unless", {}), entry["settings"]
    conditions = " and ".join(_condition(key, asked) for key, asked in unless.items())
    to_set = " ".join(
        f"{SECTION}." * (key.split(".")[0] in OF_POLICY) + f"{key}={asked}" for key, asked in unless.items()
    )
    named = not any(isinstance(asked, Mapping | list) for asked in unless.values())
    reason = entry.get("never") or f"a team reads it only with {conditions}"
    fix = entry.get("instead") or (f"set {to_set}, or remove it" if named else "remove it")
    for given in settings:
        for name, default in _leaves(given, default_of(given.removesuffix(".*"))):
            unset = settings[given] if isinstance(settings, Mapping) else [default]
            together = {name: {"not": unset}}
            yield Combination(fix, together, when=entry.get("when", {}), unless=unless, reason=reason)


ABSENT = object()


def _leaves(name: str, default: object) -> Iterator[tuple[str, object]]:
    """The setting, or those of the section `name.*` that do not follow others by default."""
    if default is ABSENT:
        return
    if not name.endswith(".*"):
        yield name, default
    elif isinstance(default, Mapping) and default:
        for key, value in default.items():
            yield from _leaves(f"{name.removesuffix('*')}{key}.*", value)
    elif not name.endswith("_target_.*") and not str(default).startswith("${"):
        yield name.removesuffix(".*"), None if default == MISSING else default


def default_of(name: str) -> object:
    """In verl's YAML; a field of its dataclass alone has none. ABSENT in a verl that lacks the setting."""
    parent, _, key = (f"{SECTION}.{name}" if name.split(".")[0] in OF_POLICY else name).rpartition(".")
    section = section_at(parent, verl_settings())
    return section.yaml.get(key) if section and section.knows(key) else ABSENT


def each(entry: Mapping[str, object]) -> Iterator[Mapping[str, object]]:
    """An entry for every alternative of `(a|b)`."""
    text = json.dumps(entry)
    found = ALTERNATIVES.search(text)
    if found is None:
        yield entry
        return
    for name in found[1].split("|"):
        yield from each(json.loads(text.replace(found[0], name)))


def naming(setting: str) -> list[str]:
    """The entries that are about a setting."""
    names = {setting, setting.removeprefix(f"{SECTION}."), setting.replace("mas.policies.<name>.", "own.")}
    return [str(entry) for entries in table().values() for entry in entries if names & entry.together.keys()]


def _condition(key: str, asked: object) -> str:
    if not isinstance(asked, Mapping):
        return f"{key}={' or '.join(map(str, asked)) if isinstance(asked, list) else asked}"
    ((name, other),) = asked.items()
    return f"{key} {name.replace('_', ' ')} {other}".replace("$", "")


@dataclass(frozen=True)
class _Values:
    config: DictConfig
    facts: Mapping[str, object]

    def of(self, key: str) -> Any:
        head, *below = (key := self.text(key)).split(".")
        if head in self.facts:
            return reduce(_part, below, self.facts[head])
        value = OmegaConf.select(self.config, f"{SECTION}.{key}" if head in OF_POLICY else key)
        return OmegaConf.to_container(value, resolve=True) if OmegaConf.is_config(value) else value

    def hold(self, conditions: Mapping[str, object]) -> bool:
        return all(self._holds(self.of(key), asked) for key, asked in conditions.items())

    def _holds(self, value: object, asked: object) -> bool:
        if not isinstance(asked, Mapping):
            options = [self._meant(option) for option in (asked if isinstance(asked, list) else [asked])]
            return value in options or (None in options and value in ({}, []))
        ((name, other),) = asked.items()
        if name == "not":
            options = other if isinstance(other, list) else [other]
            # A false value stands for every other one, and for a setting that is missing.
            return not self._holds(value, options) and bool(value or all(map(self._meant, options)))
        whole = self._meant(other)
        return value is not None and whole is not None and COMPARED[name](value, whole)

    def _meant(self, option: object) -> Any:
        return self.of(option[1:]) if isinstance(option, str) and option.startswith("$") else option

    def text(self, text: str) -> str:
        return NAMED.sub(lambda match: _shown(self.of(match[1])), text)

    def assigned(self, key: str, others: bool = False) -> str:
        value, name = self.of(key), self.text(key)
        section = f"mas.policies.{self.facts.get('policy')}."
        name = name.replace("own.", section, 1) if name.startswith("own.") else name
        name = name.removeprefix(section) if others else name
        return name if isinstance(value, Mapping) or hasattr(value, "__dict__") else f"{name}={_shown(value)}"


def combinations(part: str, config: DictConfig, whose: str = "", **facts: object) -> Iterator[Problem]:
    """The entries of a part of the table that a configuration has. `config`: of the run, or a policy's view."""
    values = _Values(config, facts)
    for entry in table()[part]:
        read = entry.unless and values.hold(entry.unless)
        if values.hold(entry.when) and values.hold(entry.together) and not read:
            first, *others = entry.together
            value = whose + values.assigned(first)
            value += " with " * bool(others) + " and ".join(values.assigned(other, others=True) for other in others)
            fix = values.text(entry.fix)
            if entry.rule:
                error = ConfigError(value, rule=values.text(entry.rule), fix=fix)
                yield unless_elsewhere(config, error) if entry.machine else error
            else:
                yield ConfigWarning(value, reason=values.text(entry.reason), fix=fix)


def _part(whole: object, name: str) -> object:
    return whole.get(name) if isinstance(whole, Mapping) else getattr(whole, name, None)


def _shown(value: object) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)
