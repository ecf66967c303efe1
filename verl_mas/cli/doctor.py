"""Say whether verl-mas works here, and what stands in the way.

usage: verl-mas doctor [what you would give python -m verl.trainer.main_ppo ...]
"""

from __future__ import annotations

import sys

from rich.console import Console

from verl_mas.checks.doctor import Finding, diagnose

SIGNS = {True: "[green]ok[/]", False: "[red]no[/]", None: "[yellow]--[/]"}


def main(argv: list[str]) -> int:
    if argv[:1] in (["-h"], ["--help"]):
        sys.stdout.write(__doc__ or "")
        return 0
    console = Console()
    findings = []
    for finding in diagnose(argv):
        findings.append(finding)
        _show(console, finding)
    problems = [finding for finding in findings if finding.ok is False]
    if problems:
        console.print(f"\n[bold red]verl-mas cannot run as asked: {len(problems)} problem(s) above.[/]")
        return 1
    console.print("\n[bold green]Ready.[/]")
    return 0


def _show(console: Console, finding: Finding) -> None:
    console.print(f"{SIGNS[finding.ok]:>14} [bold]{finding.what:22}[/] ", end="")
    console.print(finding.saw, markup=False, highlight=False)
    if finding.fix:
        console.print(f"{'':25} fix: {finding.fix}", markup=False, highlight=False)
