"""List the names that a configuration can use: teams, recipes, workflows, estimators, codecs, ...

The list includes entries of installed packages. Without KIND, it counts the entries of each kind.
"""

import inspect
import sys
from collections.abc import Callable, Mapping
from functools import partial
from itertools import takewhile
from pathlib import Path
from pkgutil import resolve_name
from types import ModuleType
from typing import TypeVar

from verl_mas.cli._arguments import add_json
from verl_mas.cli._output import console, show
from verl_mas.cli._parser import Parser
from verl_mas.config.hydra import group_files
from verl_mas.config.registry import Extra, Registry, installed, nearest
from verl_mas.errors import ConfigError
from verl_mas.util.text import listed

Named = Mapping[str, str]
EXECUTION = "mas.workflow.args.execution"
T = TypeVar("T")


def teams() -> Named:
    from verl_mas.workflow.base import WORKFLOWS

    files = {name: file for name, file in group_files("mas").items() if name != "team" and "/" not in name}
    return {**_entries(WORKFLOWS), **{name: _comments(file)[0] for name, file in files.items()}}


def recipes() -> Named:
    """Return the recipes that configure a whole run. All other recipes are parts of these recipes."""
    runs = {}
    for name, file in group_files("recipe").items():
        comments = _comments(file)
        if comments and comments[0].startswith("python -m verl.trainer.main_ppo"):
            runs[name] = comments[1]
    return runs


def _comments(file: Path) -> list[str]:
    """Return the comment lines at the top of a Hydra file, after the line that names its package."""
    lines = file.read_text(encoding="utf-8").splitlines()[1:]
    return [line.removeprefix("# ") for line in takewhile(lambda line: line.startswith("#"), lines)]


def codecs() -> Named:
    from verl_mas.workflow import codecs
    from verl_mas.workflow.codecs import Codec, Malformed

    kinds = {name: getattr(codecs, name) for name in codecs.__all__}
    return {name: _paragraph(kind.__doc__) for name, kind in kinds.items() if kind not in (Codec, Malformed)}


def commit_rules() -> Named:
    from verl_mas.workflow.commit import COMMIT_RULES

    return {name: _paragraph(COMMIT_RULES[name].choose.__doc__) for name in COMMIT_RULES}


def _registry(path: str) -> Callable[[], Named]:
    return lambda: _entries(resolve_name(path))


def _entries(registry: Registry[T]) -> Named:
    """Describe entries in the registry's folder by the docstring of their file, and other entries by their own
    docstring."""
    lines = {}
    for name in registry:
        entry = registry[name]
        module = sys.modules.get(f"{registry.package}.{name}")
        lines[name] = _paragraph(module.__doc__ if module else inspect.getdoc(entry)) + _missing(module)
    return lines


def _missing(module: ModuleType | None) -> str:
    """Describe the extras that the module of an entry needs and that are not installed."""
    extras = (value for value in (vars(module).values() if module else ()) if isinstance(value, Extra))
    needed = [f" Needs the extra {one.extra_name}: {one.install_command}" for one in extras if one.install_command]
    return ";".join(needed)


def _paragraph(text: str | None) -> str:
    return " ".join((text or "").partition("\n\n")[0].split())


def metrics() -> Named:
    from verl_mas.run_folder.metrics.table import METRICS

    return {metric.pattern: metric.meaning for metric in METRICS}


# Kind on the command line -> the setting that uses a name of this kind, and a function that returns the names. The
# function imports the registry of the names only when it is called.
KINDS: dict[str, tuple[str, Callable[[], Named]]] = {
    "teams": ("+mas=NAME", teams),
    "recipes": ("+recipe=NAME", recipes),
    "workflows": ("mas.workflow.name=NAME", _registry("verl_mas.workflow.base:WORKFLOWS")),
    "estimators": ("algorithm.adv_estimator=NAME", _registry("verl_mas.advantage.estimator:ESTIMATORS")),
    "worlds": ("mas.workflow.args.world=NAME/WORLD", _registry("verl_mas.environment.worlds.world:WORLDS")),
    "codecs": ("verl_mas.NAME, in a workflow", codecs),
    "commit-rules": ("mas.branch.commit=NAME", commit_rules),
    "graders": ("mas.workflow.args.score=NAME", _registry("verl_mas.environment.grading.grader:GRADERS")),
    "executors": (f"{EXECUTION}.executor=NAME", _registry("verl_mas.environment.execution.executor:EXECUTORS")),
    "engines": ("actor_rollout_ref.rollout.name=NAME", _registry("verl_mas.engines.facts:ENGINES")),
    "metrics": ("logged by a run; docs/use/metrics.md", metrics),
    "data": ("verl-mas data NAME", _registry("verl_mas.data.dataset:DATA_SETS")),
}
# Other installed packages add kinds by entry points. The value of an entry point is a pair of the setting that uses a
# name of the kind, and the registry of the names.
for point in installed("verl_mas.kinds"):
    used_as, registry = point.load()
    KINDS[point.name] = used_as, partial(_entries, registry)


def parser() -> Parser:
    command = Parser("verl-mas list", __doc__)
    command.add_argument("kind", metavar="KIND", nargs="?", help=", ".join(KINDS))
    add_json(command)
    return command


def main(argv: list[str]) -> int:
    options = parser().parse_args(argv)
    found: dict[str, object]
    if options.kind is None:
        kinds = {kind: {"used_as": where, "names": list(names())} for kind, (where, names) in KINDS.items()}
        found = {"kinds": kinds}
        lines = {kind: f"{len(one['names']):3}  {one['used_as']}" for kind, one in kinds.items()}
        used_as = ""
    elif options.kind in KINDS:
        where, names = KINDS[options.kind]
        lines = dict(names())
        used_as = f"\n\nused as {where}"
        found = {"kind": options.kind, "used_as": where, "names": lines}
    else:
        rule = "a kind of names that can be listed"
        raise ConfigError(f"KIND {options.kind}", rule=rule, fix=nearest(options.kind, list(KINDS)))
    show(options, found, f"{listed(lines, console().width)}{used_as}\n")
    return 0
