"""Train on this machine and plot the result.

usage: verl-mas demo [plan_path|letters] [--fresh] [override ...]

plan_path  (default) a team of two agents learns to plan, with AT-GRPO. After Ctrl-C, the next call resumes from the
           last checkpoint unless --fresh is given.
letters    one random tiny model with verl's own trainer and GRPO, to test whether verl runs. Takes a few minutes.

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

DEFAULT = "plan_path"
DEMOS = [DEFAULT, "letters"]


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
