from __future__ import annotations

import importlib
from collections.abc import Iterator

from verl_mas.config.values import Hint, settable
from verl_mas.config.verl_settings import Nested, SettingsSection, verl_settings


def sections(section: SettingsSection) -> Iterator[SettingsSection]:
    yield section
    for key in section.keys:
        if below := section.below(key):
            yield from sections(below)


def declared(section: SettingsSection) -> dict[str, Hint]:
    """The fields of the class that verl makes of a section, as it is imported."""
    target, nested = section.yaml.get("_target_"), section.declared
    if isinstance(target, str):
        module, _, name = target.rpartition(".")
    elif nested:
        module, name = nested.path.split(":")
    else:
        return {}
    return settable(getattr(importlib.import_module(module), name))


def plain(hint: Hint) -> str:
    """The text of a type. A class of verl is that of its name, whatever stands for it."""
    nested = isinstance(hint, type) and issubclass(hint, Nested)
    text = hint.__name__ if nested else str(hint)
    return ".".join(part.rpartition(".")[2] for part in text.replace("<class '", "").replace("'>", "").split("["))


def test_the_types_that_verls_sources_declare_are_those_of_its_classes():
    every = list(sections(verl_settings()))
    assert len([section for section in every if section.hints]) > 50
    for section in every:
        expected = {name: plain(hint) for name, hint in declared(section).items()}
        assert {name: plain(hint) for name, hint in section.hints.items()} == expected, section.path
