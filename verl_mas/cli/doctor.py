"""Report what is installed on this machine, and what is missing. `verl-mas check` checks a run."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING

from verl_mas.cli._arguments import add_json
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
    return command


def main(argv: list[str]) -> int:
    from verl_mas.checks import doctor

    options = parser().parse_args(argv)
    out, findings = console(), []
    for finding in doctor.diagnose(gpu=options.gpu):
        findings.append(finding)
        if not options.json:
            _show(out, finding)
    problems = sum(finding.ok is False for finding in findings)
    if options.json:
        write_json({"ready": not problems, "machine": [asdict(finding) for finding in findings]})
    elif problems:
        out.print(f"\n[bold red]verl-mas cannot run: {problems} problem(s) above.[/]")
    else:
        out.print("\n[bold green]Ready.[/]")
    return 1 if problems else 0


def _show(out: Console, finding: Aspect) -> None:
    out.print(f"{MARKS[finding.ok]:>14} [bold]{finding.what:22}[/] ", end="")
    out.print(finding.seen, markup=False, highlight=False)
    if finding.fix:
        out.print(f"{'':25} fix: {finding.fix}", markup=False, highlight=False)
