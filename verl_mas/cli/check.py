"""Check a run without starting Ray: every error and warning, and what the configuration amounts to.

ARGUMENTS are those of `python -m verl.trainer.main_ppo`. With --schema the settings of mas are listed instead and,
with ARGUMENTS, those of the team's workflow, too; `verl-mas explain` has one setting at a time.
"""

from __future__ import annotations

import gc
from dataclasses import asdict

from verl_mas.cli._arguments import add_json, add_machines, takes_run_arguments
from verl_mas.cli._output import console, show, write_json
from verl_mas.cli._parser import Parser


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
        from verl_mas.cli._explained import known_settings

        found = known_settings(arguments)
        as_json = {"settings": [asdict(setting) for setting in found]}
        show(options, as_json, "".join(f"{setting}\n" for setting in found))
        return 0
    if not argv:
        command.error("the following arguments are required: ARGUMENTS")
    # The imports make half a million objects that all stay: looking for garbage among them takes a tenth of the time.
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
        # They stay until the process ends, which would look through them once more: a second of CPU.
        gc.freeze()
