"""What a name in a configuration means: a setting of verl-mas or of verl, or an entry of a registry."""

from __future__ import annotations

import difflib
import inspect
import re
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cache

from verl_mas.advantage.options import REQUIRED, AdvantageOptions
from verl_mas.cli.list import KINDS, recipe_command
from verl_mas.config.compose import compose
from verl_mas.config.describe import Setting, settings
from verl_mas.config.hydra import group_files
from verl_mas.config.merge import leaves
from verl_mas.config.run import load
from verl_mas.config.schema import MasConfig
from verl_mas.config.values import describe
from verl_mas.config.verl_settings import section_at, verl_settings
from verl_mas.engines.transformers.request import PATH as ENGINE
from verl_mas.engines.transformers.request import Options
from verl_mas.errors import ConfigError
from verl_mas.metrics.table import described
from verl_mas.user_code import load_user_code
from verl_mas.util import read_yaml
from verl_mas.util.text import listed
from verl_mas.workflow.base import WORKFLOWS, find

ARGS = "mas.workflow.args"
PER_POLICY = "actor_rollout_ref."  # verl's settings that a policy of a team can have of its own
WIDTH = 80  # Columns of a paragraph
MOST = 40  # A section with more settings is listed by `verl-mas check --schema`


@dataclass(frozen=True)
class Explained:
    name: str
    kind: str
    meaning: str = ""
    takes: str = ""
    default: str = ""
    set_by: str = ""
    settings: Sequence[str] = ()
    names: Mapping[str, str] = field(default_factory=dict)  # What it can name of verl-mas, each with a line

    def as_json(self) -> dict[str, object]:
        return {key: value for key, value in asdict(self).items() if value}

    def __str__(self) -> str:
        fields = {"takes": self.takes, "default": self.default, "set by": self.set_by}
        lines = [f"{self.name} ({self.kind})"]
        for paragraph in self.meaning.split("\n\n") if self.meaning else ():
            lines += [*textwrap.wrap(" ".join(paragraph.split()), WIDTH, initial_indent="  ", subsequent_indent="  ")]
        lines += [f"  {label + ':':9}{text}" for label, text in fields.items() if text]
        lines += ["  settings:", *(f"    {path}" for path in self.settings)] if self.settings else []
        lines += ["  names of verl-mas:", listed(self.names, WIDTH, "    ")] if self.names else []
        return "\n".join(lines)


def known_settings(overrides: Sequence[str] = ()) -> list[Setting]:
    """Those of `mas` and of the embedded engine; with the arguments of a run those of its workflow, too."""
    known = [*settings(MasConfig, "mas"), *settings(AdvantageOptions, "mas.advantage"), *settings(Options, ENGINE)]
    if overrides:
        mas = load(compose(overrides).get("mas"))
        load_user_code(mas)
        known += settings(find(mas.workflow.name, mas.workflow.path), "mas.workflow.args")
    return known


def explained(given: str) -> list[Explained]:
    """All that the name may mean; at least one entry."""
    name = given.lstrip("+~").partition("=")[0].strip()
    meanings = [*_setting(name), *_of_verl(name), *_metric(name), *_listed(name), *_value(given)]
    if not meanings:
        rule = "a setting of verl-mas or verl, or a name that `verl-mas list` lists"
        raise ConfigError(f"NAME {given}", rule=rule, fix=_near(name))
    return meanings


def _setting(name: str) -> Iterator[Explained]:
    """A setting of `mas`, or an argument of a workflow, by its path or the end of it, in which <name> is any name."""
    known = [("a setting of verl-mas", one) for one in known_settings()]
    below = [one.path for _, one in known]
    for workflow in WORKFLOWS:
        known += [(f"an argument of the workflow {workflow}", one) for one in settings(WORKFLOWS[workflow], ARGS)]
    exact = [
        (kind, one) for kind, one in known if re.fullmatch(re.escape(one.path).replace("<name>", r"[\w<>]+"), name)
    ]
    for kind, one in exact or [(kind, one) for kind, one in known if one.path.endswith(f".{name}")]:
        yield _of_setting(one, kind, [path for path in below if path.startswith(f"{one.path}.")][:MOST])


def _of_setting(one: Setting, kind: str, below: Sequence[str] = ()) -> Explained:
    path = one.path
    plain = path in _in_yaml() and "<name>" not in path
    set_by = f"{'' if plain else '++'}{path}=VALUE" + ("" if plain else ", or in a YAML file of the team")
    return Explained(path, kind, one.meaning, one.takes, one.default, set_by, below, _names(path))


def _names(path: str) -> Mapping[str, str]:
    """Names that a setting accepts if it takes the name of a kind, such as an estimator."""
    return next((names() for where, names in KINDS.values() if where == f"{path}=NAME"), {})


@cache
def _in_yaml() -> frozenset[str]:
    """The settings that `+mas=team` has, so that they are set without `++`."""
    return frozenset(".".join(path) for path, _ in leaves(read_yaml(group_files("mas")["team"])))


def _of_verl(name: str) -> Iterator[Explained]:
    root = verl_settings()
    prefix, _, key = name.rpartition(".")
    section = section_at(prefix, root)
    if section is None or not section.knows(key) or name.split(".")[0] == "mas":
        return
    below = section.below(key)
    set_by = f"{name}=VALUE"
    if name.startswith(PER_POLICY):
        set_by += f", or of one policy: ++mas.policies.<name>.overrides.{name.removeprefix(PER_POLICY)}=VALUE"
    default = section.yaml.get(key)
    yield Explained(
        name,
        "a section of verl" if below else "a setting of verl",
        takes="" if below else describe(section.hint(key)),
        default="" if below else str(default),
        set_by="" if below else set_by,
        settings=[f"{name}.{one}" for one in below.keys][:MOST] if below else (),
        names=_names(name),
    )


def _metric(name: str) -> Iterator[Explained]:
    """`agent/solver/reward/score`."""
    metric = described(name)
    if metric and "/" in name:
        healthy = f"\n\nOne of the ten to watch; healthy: {metric.watch}." if metric.watch else ""
        yield Explained(name, "metric", metric.meaning + healthy, takes=metric.unit)


def _listed(name: str) -> Iterator[Explained]:
    for kind, (where, names) in KINDS.items():
        if kind == "metrics":
            continue
        entries = names()
        if name in entries:
            singular = {"data": "data set", "codecs": "codec"}.get(kind, kind.removesuffix("s").replace("-", " "))
            about = entries[name] + _more(kind, name)
            arguments = settings(WORKFLOWS[name], ARGS) if kind == "workflows" else ()
            lines = [str(replace(one, meaning="")) for one in arguments]
            yield Explained(name, singular, about, set_by=where.replace("NAME", name), settings=lines)


def _more(kind: str, name: str) -> str:
    if kind == "recipes":
        return f"\n\n{recipe_command(name)}"
    if kind == "estimators":
        from verl_mas.advantage.estimator import ESTIMATORS

        estimator = ESTIMATORS[name]
        defaults = ", ".join(
            f"mas.advantage.{option}={'REQUIRED' if value is REQUIRED else value}"
            for option, value in estimator.defaults.items()
        )
        formula = inspect.getdoc(estimator.function) or ""
        return f"\n\n{formula}" + (f"\n\nIts own defaults: {defaults}" if defaults else "")
    return ""


def _value(given: str) -> Iterator[Explained]:
    """`algorithm.adv_estimator=agent_grpo`: what the value names."""
    _, equals, value = given.partition("=")
    if equals and value:
        yield from (one for one in _listed(value) if given.lstrip("+") in one.set_by)


def _near(name: str) -> str:
    last = name.rpartition(".")[2]
    verl = [".".join(path) for path, _ in leaves(verl_settings().yaml)]
    paths = [*(one.path for one in known_settings()), *verl]
    names = [name for _, of_kind in KINDS.values() for name in of_kind()]
    close = [path for path in paths if path.rpartition(".")[2] == last]
    close = close or difflib.get_close_matches(name, [*paths, *names], n=3, cutoff=0.7)
    ends = {path.rpartition(".")[2]: path for path in reversed(paths)}
    close = close or [ends[end] for end in difflib.get_close_matches(last, ends, n=3, cutoff=0.8)]
    listed = "`verl-mas list` and `verl-mas check --schema` list what there is"
    return f"did you mean {', '.join(close[:3])}? {listed}" if close else listed
