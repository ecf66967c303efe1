"""What a configuration can name: teams, workflows, estimators, recipes, codecs, ..., each with a line about it."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Mapping
from itertools import takewhile
from pathlib import Path
from typing import TypeVar

from verl_mas.registry import Registry

HYDRA = Path(__file__).parents[1] / "config" / "hydra"
Named = Mapping[str, str]
T = TypeVar("T")


def teams() -> Named:
    files = sorted((HYDRA / "mas").glob("*.yaml"))
    return {file.stem: _comments(file)[0] for file in files if file.stem != "team"}


def recipes() -> Named:
    """Those that are a run; the others are parts of them."""
    found = {}
    for file in sorted((HYDRA / "recipe").glob("*/*.yaml")):
        comments = _comments(file)
        if comments and comments[0].startswith("python -m verl.trainer.main_ppo"):
            found[f"{file.parent.name}/{file.stem}"] = comments[1]
    return found


def recipe_command(name: str) -> str:
    return _comments(HYDRA / "recipe" / f"{name}.yaml")[0]


def _comments(file: Path) -> list[str]:
    """The comments at the top of a file of Hydra, below its package."""
    lines = file.read_text(encoding="utf-8").splitlines()[1:]
    return [line.removeprefix("# ") for line in takewhile(lambda line: line.startswith("#"), lines)]


def workflows() -> Named:
    from verl_mas.workflow.base import WORKFLOWS

    return _entries(WORKFLOWS, "verl_mas.workflows")


def estimators() -> Named:
    from verl_mas.advantage.estimator import ESTIMATORS

    return _entries(ESTIMATORS, "verl_mas.advantage.estimators")


def codecs() -> Named:
    from verl_mas.workflow import codecs
    from verl_mas.workflow.codecs import Codec, Malformed

    kinds = {name: getattr(codecs, name) for name in codecs.__all__}
    return {name: _paragraph(kind.__doc__) for name, kind in kinds.items() if kind not in (Codec, Malformed)}


def puzzles() -> Named:
    from verl_mas.puzzles.base import PUZZLES

    return _entries(PUZZLES, "verl_mas.puzzles.kinds")


def games() -> Named:
    from verl_mas.games.base import GAMES

    return _entries(GAMES, "verl_mas.games.kinds")


def data_sets() -> Named:
    from verl_mas.data.dataset import DATA_SETS

    return _entries(DATA_SETS)


def graders() -> Named:
    from verl_mas.grading.grader import GRADERS

    return _entries(GRADERS, "verl_mas.grading.graders")


def executors() -> Named:
    from verl_mas.execution.executor import EXECUTORS

    return _entries(EXECUTORS, "verl_mas.execution.executors")


def engines() -> Named:
    from verl_mas.engines.facts import ENGINES

    return _entries(ENGINES, "verl_mas.engines.kinds")


def commit_rules() -> Named:
    from verl_mas.workflow.commit import COMMIT_RULES

    return {name: _paragraph(COMMIT_RULES[name].choose.__doc__) for name in COMMIT_RULES}


def _entries(registry: Registry[T], package: str = "") -> Named:
    """The shipped entries by the docstring of their file in `package`; others, and all without one, by their own."""
    found = {}
    for name in registry:
        entry = registry[name]
        module = sys.modules.get(f"{package}.{name}")
        found[name] = _paragraph(module.__doc__ if module else inspect.getdoc(entry))
    return found


def _paragraph(text: str | None) -> str:
    return " ".join((text or "").partition("\n\n")[0].split())


def metrics() -> Named:
    from verl_mas.metrics.table import METRICS

    return {name: metric.meaning for metric in METRICS for name in metric.names}


# By the name on the command line: where it is set, and the names.
KINDS: Mapping[str, tuple[str, Callable[[], Named]]] = {
    "teams": ("+mas=NAME", teams),
    "recipes": ("+recipe=NAME", recipes),
    "workflows": ("mas.workflow.name=NAME", workflows),
    "estimators": ("algorithm.adv_estimator=NAME", estimators),
    "codecs": ("verl_mas.NAME, in a workflow", codecs),
    "commit-rules": ("mas.branch.commit=NAME", commit_rules),
    "graders": ("mas.workflow.args.score=NAME", graders),
    "executors": ("mas.workflow.args.execution.executor=NAME", executors),
    "engines": ("actor_rollout_ref.rollout.name=NAME", engines),
    "metrics": ("logged by a run; docs/metrics.md", metrics),
    "puzzles": ("verl-mas data puzzle NAME", puzzles),
    "games": ("verl-mas data self_play --game NAME", games),
    "data": ("verl-mas data NAME", data_sets),
}
