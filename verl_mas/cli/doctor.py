"""Report what is installed on this machine, and what is missing. With the arguments of a run, check it, too.

ARGUMENTS are those of `python -m verl.trainer.main_ppo`.
"""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING

from verl_mas.cli._arguments import add_json, takes_run_arguments
from verl_mas.cli._output import console, write_json
from verl_mas.cli._parser import Parser

if TYPE_CHECKING:
    from rich.console import Console

    from verl_mas.checks.doctor import Aspect

MARKS = {True: "[green]ok[/]", False: "[red]no[/]", None: "[yellow]--[/]"}


def parser() -> Parser:
    command = Parser("verl-mas doctor", __doc__)
    add_json(command)
    command.add_argument("--gpu", action="store_true", help="also what GPUs need, on a machine that has none")
    takes_run_arguments(command, "[ARGUMENTS]")
    return command


def main(argv: list[str]) -> int:
    from verl_mas.checks import doctor

    options, arguments = parser().parse_known_args(argv)
    out, findings = console(), []
    for finding in doctor.diagnose(gpu=options.gpu):
        findings.append(finding)
        if not options.json:
            _show(out, finding)
    problems = sum(finding.ok is False for finding in findings)
    if options.json:
        # What is installed and, if the machine is ready and a run is given, what `verl-mas check` says of it.
        ready = not problems
        found: dict[str, object] = {"ready": ready, "machine": [asdict(finding) for finding in findings]}
        if ready and arguments:
            from verl_mas.checks.run import examine_command

            report = examine_command(arguments, None)
            found |= report.found()
            ready = report.accepted
        write_json(found)
        return 0 if ready else 1
    if problems:
        out.print(f"\n[bold red]verl-mas cannot run: {problems} problem(s) above.[/]")
        return 1
    out.print("\n[bold green]Ready.[/]")
    if not arguments:
        return 0
    from verl_mas.cli import check

    return check.main(arguments)


def _show(out: Console, finding: Aspect) -> None:
    out.print(f"{MARKS[finding.ok]:>14} [bold]{finding.what:22}[/] ", end="")
    out.print(finding.seen, markup=False, highlight=False)
    if finding.fix:
        out.print(f"{'':25} fix: {finding.fix}", markup=False, highlight=False)
