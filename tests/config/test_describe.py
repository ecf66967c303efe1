"""Descriptions of settings, made from the dataclasses."""

from dataclasses import dataclass, field

from verl_mas.advantage.options import AdvantageOptions
from verl_mas.config.describe import settings
from verl_mas.config.schema import MasConfig
from verl_mas.config.values import Count
from verl_mas.engines.transformers.request import Options
from verl_mas.gym.warmup import WarmUp
from verl_mas.workflow.base import WORKFLOWS, find

SHIPPED = [kind for kind in map(find, WORKFLOWS) if kind.__module__.startswith("verl_mas.")]


@dataclass
class Base:
    first: Count = 1
    """Its meaning,
    on two lines."""

    silent: bool = True


@dataclass
class More:
    """Of more."""


@dataclass
class Sub(Base):
    second: str | None = None
    """Another."""

    bases: dict[str, Base] = field(default_factory=dict)
    more: dict[str, More] = field(default_factory=dict)


def test_settings_are_listed_with_type_default_and_meaning():
    assert [str(setting) for setting in settings(Sub, "it")] == [
        "it.first: a whole number, at least 1 (default 1)\n    Its meaning, on two lines.",
        "it.silent: true or false (default true)",
        "it.second: text, or null (default null)\n    Another.",
        "it.bases: a mapping",
        "it.bases.<name>.first: a whole number, at least 1 (default 1)\n    Its meaning, on two lines.",
        "it.bases.<name>.silent: true or false (default true)",
        "it.more: a mapping\n    Of more.",
    ]


def test_every_setting_has_a_meaning():
    kinds = [MasConfig, AdvantageOptions, Options, WarmUp, *SHIPPED]
    every = [setting for kind in kinds for setting in settings(kind, kind.__name__)]
    assert [setting.path for setting in every if not setting.meaning] == []
