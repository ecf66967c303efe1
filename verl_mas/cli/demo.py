"""Train on this machine and plot the result.

usage: verl-mas demo [split_clues|plan_path|letters] [--fresh] [override ...]

split_clues  (default) two agents, each with half of the clues, learn what to write to each other. A few minutes.
plan_path    a planner and an executor learn to solve mazes, with AT-GRPO. About ten minutes.
letters      one random tiny model with verl's own trainer and GRPO, to test whether verl runs. A few minutes.

After Ctrl-C, the next call of a team's demo resumes from its last checkpoint unless --fresh is given.
Data, model and checkpoints are written to runs/ in the current folder.
"""

from __future__ import annotations

import importlib
import sys

from rich.console import Console

from verl_mas import demos
from verl_mas.demos import curves
from verl_mas.errors import ConfigError
from verl_mas.registry import nearest

DEFAULT = "split_clues"
DEMOS = [DEFAULT, "plan_path", "letters"]


def main(argv: list[str]) -> int:
    if argv[:1] in (["-h"], ["--help"]):
        sys.stdout.write(__doc__ or "")
        return 0
    fresh, argv = "--fresh" in argv, [text for text in argv if text != "--fresh"]
    name, overrides = (argv[0], argv[1:]) if argv and "=" not in argv[0] else (DEFAULT, argv)
    if name not in DEMOS:
        raise ConfigError(f"demo {name!r}", rule="it names one of the demos", fix=nearest(name, DEMOS))
    curves.check_plots()
    try:
        importlib.import_module(f"{demos.__name__}.{name}").run(overrides, Console(), fresh=fresh)
    except KeyboardInterrupt:
        sys.stderr.write("\ninterrupted; the training run has ended, too\n")
        return 130
    return 0
