"""Every setting, of the team and of verl: a misspelt key, a wrong type, a value out of range and a name that is no
choice are refused, and the message names the setting."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml
from every_setting import ours, refused_by, verls
from hydra.core.override_parser.overrides_parser import OverridesParser
from omegaconf import DictConfig, OmegaConf

from verl_mas.checks.policies import check_override_keys, check_override_values
from verl_mas.checks.verl.refusals import Problem
from verl_mas.checks.verl.settings import check_keys, check_values
from verl_mas.config.run import Run, load
from verl_mas.errors import ConfigError, ConfigErrors

OVERRIDES = "mas.policies.main.overrides"
# What the message says -> settings with the values that it is said of.
REFUSED: dict[str, str] = yaml.safe_load(Path(__file__).with_name("every_setting.yaml").read_text(encoding="utf-8"))
SETS = OverridesParser.create().parse_override


def full(text: str) -> str:
    return text.replace("AR.", "actor_rollout_ref.").replace("OV.", f"{OVERRIDES}.")


@dataclass(frozen=True)
class Assignment:
    path: str
    value: Any
    says: str

    def fits(self, other: Assignment) -> bool:
        """Whether both can be wrong in one configuration, and are reported in one call."""
        ours, theirs = f"{self.path}.", f"{other.path}."
        return not (ours.startswith(theirs) or theirs.startswith(ours)) and self.of_team == other.of_team

    @property
    def of_team(self) -> bool:
        return self.path.startswith("mas.") and not self.path.startswith(f"{OVERRIDES}.")


def assignments() -> Iterator[Assignment]:
    for says, settings in REFUSED.items():
        for setting in full(settings).split():
            path, _, values = setting.partition("=")
            yield from (Assignment(path, SETS(f"{path}={value}").value(), full(says)) for value in values.split("|"))


def rounds(every: Iterable[Assignment]) -> list[list[Assignment]]:
    """As few configurations as have each assignment once."""
    together: list[list[Assignment]] = []
    for one in every:
        group = next((group for group in together if all(map(one.fits, group))), None)
        if group is None:
            together.append(group := [])
        group.append(one)
    return together


def reported(config: DictConfig) -> dict[str, str]:
    """Setting -> what the checks of single settings say of it."""
    errors: list[Problem] = [*check_keys(config), *check_values(config)]
    try:
        run = Run.of(config)
        errors += [*check_override_keys(run), *check_override_values(run)]
    except ConfigError as error:
        errors += error.errors if isinstance(error, ConfigErrors) else [error]
    said: dict[str, str] = defaultdict(str)
    for error in errors:
        said[re.split(r"[=\[ ]", error.value)[0]] += str(error)
    return said


def said_of(path: str, said: dict[str, str]) -> str:
    """What is said of a setting or of a section that it is in."""
    return "".join(text for name, text in said.items() if f"{path}.".startswith(f"{name}."))


def test_a_wrong_value_or_key_is_refused_in_the_words_of_its_rule(make):
    missed = []
    for group in rounds(assignments()):
        config = make()
        for one in group:
            OmegaConf.update(config, one.path, one.value, force_add=True)
        said = reported(config)
        missed += [(one, said_of(one.path, said)) for one in group if one.says not in said_of(one.path, said)]
    assert missed == []


def test_every_setting_of_verl_refuses_a_misspelt_key_and_names_the_right_one(make):
    config, paths = make(), [path for path, _ in verls()]
    for path in paths:
        OmegaConf.update(config, f"{path}x", 1, force_add=True)
    said = {error.value: error.fix for error in check_keys(config)}
    assert [path for path in paths if path not in said.get(f"{path}x is not a setting", "")] == []


def test_every_setting_of_verl_with_a_type_refuses_other_values_and_is_named(make):
    typed = {path: refused for path, hint in verls() if (refused := refused_by(hint))}
    assert len(typed) > 1000
    missed = []
    for number in range(max(map(len, typed.values()))):
        config, wrong = make(), {path: values[number] for path, values in typed.items() if number < len(values)}
        for path, value in wrong.items():
            OmegaConf.update(config, path, value, merge=False, force_add=True)
        said = {re.split(r"[=\[]", error.value)[0] for error in check_values(config)}
        missed += [f"{path}={value}" for path, value in wrong.items() if path not in said]
    assert missed == []


def test_every_setting_of_the_team_refuses_a_misspelt_key_and_other_values_and_is_named():
    for path, hint in ours():
        misspelt = (f"{path}x", 1, f"did you mean {path.rpartition('.')[2]!r}?")
        for where, value, says in [misspelt, *((path, value, path) for value in refused_by(hint))]:
            node = OmegaConf.create()
            OmegaConf.update(node, where, value, force_add=True)
            with pytest.raises(ConfigError) as refused:
                load(node.mas)
            assert where in str(refused.value) and says in str(refused.value)
