"""Train on this machine and draw what was learned.

usage: verl-mas demo [plan_path|letters] [--fresh] [override ...]

plan_path  (default) a team of two agents learns to plan, by AT-GRPO. Ctrl-C ends it, and the next one goes on from
           the last checkpoint unless --fresh is given.
letters    one random tiny model, verl's own trainer and GRPO: does verl run here? A few minutes.

From a clone of the repository, where the recipes are.
"""

from __future__ import annotations

import importlib
import pkgutil
import sys
from pathlib import Path

from rich.console import Console

from verl_mas import demos
from verl_mas.errors import ConfigError
from verl_mas.registry import nearest

DEFAULT = "plan_path"


def main(argv: list[str]) -> int:
    if argv[:1] in (["-h"], ["--help"]):
        sys.stdout.write(__doc__ or "")
        return 0
    if not Path("recipes").is_dir():
        raise ConfigError("no folder recipes here", rule="a demo trains a recipe of the repository", fix="use a clone")
    known = [module.name for module in pkgutil.iter_modules(demos.__path__)]
    fresh, argv = "--fresh" in argv, [text for text in argv if text != "--fresh"]
    name, overrides = (argv[0], argv[1:]) if argv and "=" not in argv[0] else (DEFAULT, argv)
    if name not in known:
        raise ConfigError(f"demo {name!r}", rule="it is one of the demos", fix=nearest(name, known))
    try:
        importlib.import_module(f"{demos.__name__}.{name}").run(overrides, Console(), fresh=fresh)
    except KeyboardInterrupt:
        sys.stderr.write("\nended; the training run, too\n")
        return 130
    return 0
