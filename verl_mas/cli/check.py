"""Check a run without starting Ray: list every error and warning, and summarise the run.

ARGUMENTS are those of `python -m verl.trainer.main_ppo`. --schema lists the settings of mas instead and, with
ARGUMENTS, also those of the team's workflow.
"""

from __future__ import annotations

import gc
from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING

from verl_mas.cli._arguments import add_json, add_machines, takes_run_arguments
from verl_mas.cli._output import console, show, write_json
from verl_mas.cli._parser import Parser

if TYPE_CHECKING:
    from verl_mas.config.describe import Setting


def parser() -> Parser:
    command = Parser("verl-mas check", __doc__)
    add_machines(command)
    add_json(command)
    command.add_argument("--schema", action="store_true", help="list every setting of mas instead of checking a run")
    takes_run_arguments(command)
    return command


def main(argv: list[str]) -> int:
    command = parser()
    options, arguments = command.parse_known_args(argv)
    if options.schema:
        found = known_settings(arguments)
        as_json = {"settings": [asdict(setting) for setting in found]}
        show(options, as_json, "".join(f"{setting}\n" for setting in found))
        return 0
    if not argv:
        command.error("the following arguments are required: ARGUMENTS")
    # Turn off garbage collection: the imports create half a million objects that all stay, and searching them takes a
    # tenth of the time.
    gc.disable()
    try:
        from verl_mas.checks.run import examine_command
        from verl_mas.cli._tree import tree
        from verl_mas.planning.hardware import parse_gpus

        report = examine_command(arguments, parse_gpus(options.gpus) if options.gpus else None)
        if options.json:
            machine = [asdict(finding) for finding in report.machine]
            write_json(report.found() | {"run": report.summary, "machine": machine})
        else:
            out = console()
            if report.summary:
                out.print(tree(report.summary, report.machine))
            style = "green" if report.accepted else "red"
            out.print(report.problems, style=style, markup=False, highlight=False)
        return 0 if report.accepted else 1
    finally:
        gc.enable()
        # These objects stay until the process ends. Freeze them, because the collector would search them once more at
        # the end, which takes a second of CPU.
        gc.freeze()


def known_settings(arguments: Sequence[str] = ()) -> list[Setting]:
    """List the settings of `mas` and of the embedded engine; with a run's arguments, also settings of its workflow."""
    from verl_mas.advantage.options import AdvantageOptions
    from verl_mas.config.compose import compose
    from verl_mas.config.describe import settings
    from verl_mas.config.run import load
    from verl_mas.config.schema import MasConfig
    from verl_mas.config.user_code import load_user_code
    from verl_mas.engines.transformers.request import PATH, Options
    from verl_mas.workflow.base import find

    known = [*settings(MasConfig, "mas"), *settings(AdvantageOptions, "mas.advantage"), *settings(Options, PATH)]
    if arguments:
        mas = load(compose(arguments).get("mas"))
        load_user_code(mas)
        known += settings(find(mas.workflow.name, mas.workflow.path), "mas.workflow.args")
    return known
