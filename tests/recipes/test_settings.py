"""Each recipe passes the checks of verl and the plugin, and has the settings that settings.toml says."""

from collections.abc import Mapping
from functools import reduce
from pathlib import Path

import pytest
import tomllib
from omegaconf import OmegaConf
from recipe_configs import accepted

from verl_mas.workflow.base import agents_of, resolve


def expanded(text):
    """Expand braces: `a{b,c}` becomes `ab` and `ac`."""
    head, _, rest = text.partition("{")
    words, closed, tail = rest.partition("}")
    if not closed or not words:
        return [text]
    return [head + word + more for word in words.split(",") for more in expanded(tail)]


def by_arguments():
    """The settings of all entries of the file that name the same arguments."""
    settings = {}
    for entry in tomllib.loads(Path(__file__).with_name("settings.toml").read_text())["of"]:
        for arguments in entry.pop("arguments"):
            for each in expanded(arguments):
                settings.setdefault(each, {}).update(entry)
    return settings


def at(found, path):
    """Return the value at a path, in which each name is an attribute or a key."""
    return reduce(lambda of, name: of[name] if isinstance(of, Mapping) else getattr(of, name), path.split("."), found)


@pytest.mark.parametrize(("arguments", "settings"), by_arguments().items())
def test_a_recipe_has_the_settings_of_its_page(arguments, settings):
    run = accepted(arguments)
    for key, expected in settings.items():
        start, _, path = key.partition(".")
        if start == "policies":
            expected = expected if isinstance(expected, dict) else dict.fromkeys(run.mas.policies, expected)
            assert {name: run.view(name).value(path) for name in run.mas.policies} == expected, key
        elif start == "agents":
            assert all(at(agent.spec, path) == expected for agent in agents_of(run.mas).values()), key
        elif start == "number":
            assert len(at(run.mas, path)) == expected, key
        elif start == "workflow":
            value = at(resolve(run.mas.workflow), path)
            assert (list(value) if isinstance(value, tuple) else value) == expected, key
        else:
            assert (at(run.mas, path) if start == "team" else OmegaConf.select(run.config, key)) == expected, key
