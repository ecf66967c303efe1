"""Train on this machine, and report the result.

split_clues  (default) two agents, each with half of the clues, learn what to write to each other. A few minutes.
plan_path    a planner and an executor learn to solve mazes, with AT-GRPO. About ten minutes.
letters      one random tiny model with verl's own trainer and GRPO, to test whether verl runs. A few minutes.

ARGUMENTS are those of `python -m verl.trainer.main_ppo` and change the recipe. After Ctrl-C, the next call of a team's
demo resumes from its last checkpoint unless --fresh is given. Data, model and checkpoints are written to runs/ in the
current folder.
"""

from __future__ import annotations

import importlib
import sys

from verl_mas.cli._parser import Parser
from verl_mas.errors import ConfigError
from verl_mas.registry import nearest

DEMO_PACKAGE = "verl_mas.demos"
DEFAULT = "split_clues"
DEMOS = [DEFAULT, "plan_path", "letters"]


def parser() -> Parser:
    made = Parser("verl-mas demo", __doc__, usage=f"verl-mas demo [{'|'.join(DEMOS)}] [--fresh] [ARGUMENTS]")
    made.add_argument("--fresh", action="store_true", help="start again instead of resuming")
    return made


def main(argv: list[str]) -> int:
    options, rest = parser().parse_known_args(argv)
    name, overrides = (rest[0], rest[1:]) if rest and "=" not in rest[0] else (DEFAULT, rest)
    if name not in DEMOS:
        raise ConfigError(f"demo {name!r}", rule="it names one of the demos", fix=nearest(name, DEMOS))
    # What follows imports torch and transformers, which takes some seconds.
    sys.stdout.write(f"demo {name}: loading\n")
    sys.stdout.flush()
    from rich.console import Console

    try:
        importlib.import_module(f"{DEMO_PACKAGE}.{name}").run(overrides, Console(), fresh=options.fresh)
    except KeyboardInterrupt:
        sys.stderr.write("\ninterrupted; the training run has ended, too\n")
        return 130
    return 0
