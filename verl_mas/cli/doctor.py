"""Report what is installed on this machine, and what is missing. With the arguments of a run, check it, too.

usage: verl-mas doctor [arguments of python -m verl.trainer.main_ppo ...]
"""

from __future__ import annotations

import sys

from rich.console import Console

from verl_mas.checks.doctor import Finding, diagnose
from verl_mas.cli import check
from verl_mas.cli._output import console

MARKS = {True: "[green]ok[/]", False: "[red]no[/]", None: "[yellow]--[/]"}


def main(argv: list[str]) -> int:
    if argv[:1] in (["-h"], ["--help"]):
        sys.stdout.write(__doc__ or "")
        return 0
    out = console()
    findings = []
    for finding in diagnose():
        findings.append(finding)
        _show(out, finding)
    problems = [finding for finding in findings if finding.ok is False]
    if problems:
        out.print(f"\n[bold red]verl-mas cannot run: {len(problems)} problem(s) above.[/]")
        return 1
    out.print("\n[bold green]Ready.[/]")
    return check.main(argv) if argv else 0


def _show(out: Console, finding: Finding) -> None:
    out.print(f"{MARKS[finding.ok]:>14} [bold]{finding.what:22}[/] ", end="")
    out.print(finding.seen, markup=False, highlight=False)
    if finding.fix:
        out.print(f"{'':25} fix: {finding.fix}", markup=False, highlight=False)
