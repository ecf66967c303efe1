"""Train on this machine, and report the result.

ARGUMENTS are those of `python -m verl.trainer.main_ppo` and change the recipe. After Ctrl-C, the next call of a team's
demo resumes from its last checkpoint unless --fresh is given. Data, model and checkpoints are written to runs/ in the
current folder.
"""

import sys
from importlib.metadata import EntryPoint

from verl_mas.cli import summary
from verl_mas.cli._parser import Parser
from verl_mas.config.registry import installed, nearest
from verl_mas.errors import ConfigError
from verl_mas.util.text import listed

DEFAULT = "split_clues"
GROUP = "verl_mas.demos"  # entry-point group of demos, which are functions of (overrides, console, fresh)


def demos() -> dict[str, EntryPoint]:
    return {point.name: point for point in sorted(installed(GROUP), key=lambda point: point.name != DEFAULT)}


def parser() -> Parser:
    found = demos()
    usage = f"verl-mas demo [{'|'.join(found)}] [--fresh] [ARGUMENTS]"
    names = listed({name: summary(point.module) for name, point in found.items()}, width=80)
    command = Parser("verl-mas demo", (__doc__ or "").replace("\n\n", f"\n\n{names}\n\n", 1), usage=usage)
    command.add_argument("--fresh", action="store_true", help="start again instead of resuming")
    return command


def main(argv: list[str]) -> int:
    options, rest = parser().parse_known_args(argv)
    name, overrides = (rest[0], rest[1:]) if rest and "=" not in rest[0] else (DEFAULT, rest)
    found = demos()
    if not found:
        rule = f"a demo is an entry point of {GROUP} in an installed package"
        raise ConfigError("no demo is installed", rule=rule, fix="install the whole of verl-mas")
    if name not in found:
        raise ConfigError(f"demo {name!r}", rule="it names one of the demos", fix=nearest(name, list(found)))
    # The code below imports torch and transformers, which takes some seconds.
    sys.stdout.write(f"demo {name}: loading\n")
    sys.stdout.flush()
    from rich.console import Console

    try:
        found[name].load()(overrides, Console(), fresh=options.fresh)
    except KeyboardInterrupt:
        sys.stderr.write("\ninterrupted; the training run has ended, too\n")
        return 130
    return 0
