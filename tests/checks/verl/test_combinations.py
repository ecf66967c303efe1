"""The table of settings that cannot be together: its entries read what exists, and are found by their conditions."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args, get_origin

import pytest
import yaml
from omegaconf import OmegaConf

from verl_mas import checks
from verl_mas.advantage import ESTIMATORS
from verl_mas.checks.trainer import check_together
from verl_mas.checks.verl.combinations import (
    ABSENT,
    NAMED,
    OF_POLICY,
    READERS,
    Combination,
    combinations,
    default_of,
    each,
    table,
)
from verl_mas.config.merge import SECTION
from verl_mas.config.modes import Mode, Staleness
from verl_mas.config.run import Run
from verl_mas.config.schema import FilterSpec, MasConfig, PolicySpec, SwapSpec
from verl_mas.config.values import core_type, settable
from verl_mas.config.verl_settings import section_at, verl_settings
from verl_mas.engines.facts import EngineFacts
from verl_mas.errors import ConfigError, ConfigWarning
from verl_mas.workflow import Workflow

ENTRIES = [pytest.param(part, entry, id=entry.fix[:60]) for part in table() for entry in table()[part]]
# What checks give beside settings: an object, whose attributes conditions name.
GIVEN = {
    "engine": EngineFacts(),
    "estimator": ESTIMATORS["agent_grpo"],
    "mode": Mode("mas", "sync"),
    "run": Run,
    "stale": Staleness(1, 2, "wait"),
    "workflow": Workflow,
}
SOURCES = "".join(path.read_text() for path in Path(checks.__file__).parent.rglob("*.py"))


def names(entry: Combination) -> Iterator[str]:
    """Every setting that an entry reads."""
    texts = [*entry.together, *entry.when, *entry.unless, entry.rule, entry.reason, entry.fix]
    yield from (name for text in texts for name in NAMED.findall(text))
    for key, asked in {**entry.together, **entry.when, **entry.unless}.items():
        yield NAMED.sub("x", key)
        yield from references(asked)


def references(asked: object) -> Iterator[str]:
    """The settings whose values a condition is about."""
    (others,) = asked.values() if isinstance(asked, dict) else (asked,)
    yield from (one[1:] for one in (others if isinstance(others, list) else [others]) if str(one).startswith("$"))


def exists(name: str) -> bool:
    head, *below = name.split(".")
    if head in GIVEN:
        return all(hasattr(GIVEN[head], part) for part in below)
    if head in ("mas", "own"):
        return ours(MasConfig if head == "mas" else PolicySpec, below)
    parent, _, key = f"{SECTION if head in OF_POLICY else ''}.{name}".lstrip(".").rpartition(".")
    if not below:
        return f"{head}=" in SOURCES or f'"{head}":' in SOURCES
    section = section_at(parent, verl_settings())
    return section.knows(key) if section else True  # of a section that takes any key


def ours(kind: Any, below: list[str]) -> bool:
    for name in below:
        if get_origin(kind) is dict:
            kind = get_args(kind)[1]
        elif name in getattr(kind, "__annotations__", {}):
            kind = core_type(settable(kind)[name])
        else:
            return isinstance(getattr(kind, name, None), property)
        if kind is Any:
            return True
    return True


@pytest.mark.parametrize(("part", "entry"), ENTRIES)
def test_an_entry_reads_settings_that_exist(part, entry):
    assert [name for name in names(entry) if not exists(name)] == []


def test_a_setting_that_does_not_exist_is_noticed():
    wrong = "trainer.save_frequency mas.filter.round own.adapter engine.lora stale.warm nothing rollout.nam mas.nothing"
    assert [name for name in wrong.split() if exists(name)] == []


def test_alternatives_are_an_entry_each_with_their_own_texts():
    entry = {"together": {"mas.(a|b).k": 1, "(c.d|e)_x": {"not": "(a|b)"}}, "fix": "set (a|b) (or leave it)"}
    expanded = [(*one["together"], one["fix"]) for one in each(entry)]
    assert expanded == [(f"mas.{a}.k", x, f"set {a} (or leave it)") for a in "ab" for x in ("c.d_x", "e_x")]


def value_for(asked: object, at: dict[str, object], *, holds: bool) -> object:
    """A value with which a condition holds, or does not."""
    if not isinstance(asked, dict):
        return (asked[0] if isinstance(asked, list) else asked) if holds else "another value"
    ((name, other),) = asked.items()
    other = at[other[1:]] if isinstance(other, str) and other.startswith("$") else other
    if name == "not":
        named = other if isinstance(other, list) else [other]
        others = [at[one[1:]] if isinstance(one, str) and one.startswith("$") else one for one in named]
        return next(value for value in ("x", True) if value not in others) if holds else others[0]
    if name in ("has", "lacks"):
        return [other] if holds is (name == "has") else ["another value"]
    if name == "no_divisor_of":
        return 3 if holds else 2
    beside = {"above": 1, "least": 0, "below": -1}[name]
    return other + (beside if holds else {"above": 0, "least": -1, "below": 0}[name])


@pytest.mark.parametrize(("part", "entry"), ENTRIES)
def test_an_entry_is_found_where_all_of_its_conditions_hold_and_nowhere_else(part, entry, monkeypatch):
    monkeypatch.setattr("verl_mas.checks.verl.combinations.table", lambda: {part: [entry]})
    conditions = {**entry.together, **entry.when}
    referred = {name for asked in conditions.values() for name in references(asked)}
    at: dict[str, object] = dict.fromkeys(names(entry), 4)
    at |= {key: value_for(asked, at, holds=True) for key, asked in conditions.items() if key not in referred}
    read = {key: value_for(asked, at, holds=True) for key, asked in entry.unless.items()}
    at |= {key: value_for(asked, at, holds=False) for key, asked in entry.unless.items()}
    (problem,) = found(part, at)
    assert problem.value.startswith("policy a: ") and isinstance(problem, ConfigError if entry.rule else ConfigWarning)
    for key, asked in conditions.items():
        if asked != {"not": []}:
            assert found(part, at | {key: value_for(asked, at, holds=False)}) == [], key
    if read:
        assert found(part, at | read) == []


def found(part: str, at: dict[str, object]) -> list[ConfigError | ConfigWarning]:
    """With these values."""
    config, own = OmegaConf.create(), OmegaConf.create()
    for key, value in at.items():
        place = f"{SECTION}.{key}" if key.split(".")[0] in OF_POLICY else key.removeprefix("own.")
        OmegaConf.update(own if key.startswith("own.") else config, full(place, at), value, force_add=True)
    given = OmegaConf.to_container(own)
    return [*combinations(part, config, "policy a: ", policy="a", own=given)]


def full(key: str, at: dict[str, object]) -> str:
    return NAMED.sub(lambda match: "a" if match[1] == "policy" else str(at[match[1]]), key)


def test_a_setting_that_is_not_read_counts_as_unset_where_it_has_verls_default():
    """Those that follow another setting by default say what is as good as unset."""
    for entry in yaml.safe_load(READERS.read_text())["entries"]:
        settings = entry["settings"]
        for name in settings:
            default = default_of(name.removesuffix(".*"))
            assert default is not ABSENT, f"verl has no {name}"
            follows = str(default).startswith("${")
            unset = settings[name] if isinstance(settings, dict) else [] if follows else [default]
            assert (follows and unset) or default in unset, name


def test_a_setting_is_not_read_where_no_policy_reads_it(two):
    def warned(**overrides):
        policies = {"a": {"overrides": overrides}, "b": {}}
        run = Run.of(two(mas__policies=policies, actor_rollout_ref__actor__tau_neg=1.2))
        return [problem.value for problem in check_together(run) if "tau_neg" in problem.value]

    assert warned() == ["actor.tau_neg=1.2"] and warned(actor={"policy_loss": {"loss_mode": "sapo"}}) == []


def test_the_defaults_that_the_table_names_are_those_of_the_schema():
    assert (SwapSpec().every, FilterSpec().max_rounds) == (5, 10)
    sampler = section_at("trainer.v1.sampler", verl_settings()).yaml
    assert (sampler["max_off_policy_threshold"], sampler["max_off_policy_strategy"]) == (8, "drop")
