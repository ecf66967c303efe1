"""The tables that `verl-mas eval` shows."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from verl_mas.serve.eval_report import Table as Numbers
from verl_mas.util.text import printable
from verl_mas.verl_.types import Fields


def tables(teams: Sequence[Fields], difference: Numbers) -> Iterator[RenderableType]:
    for team in teams:
        failed = f", {team['failed']} failed" if team["failed"] else ""
        yield Text(f"\n{team['dir']}: {team['tasks']} tasks, {team['sessions']} sessions{failed}")
        yield _scores(team["sources"])
        agents = team["agents"]
        names = list(dict.fromkeys(name for found in agents.values() for name in found))
        table = Table("agent", *[name.replace("_", " ") for name in names])
        for agent, found in agents.items():
            table.add_row(agent, *[f"{found[name]:.3g}" if name in found else "" for name in names])
        yield table
    if difference:
        first, second = (team["dir"] for team in teams)
        yield Text(f"\n{first} minus {second}, paired by task")
        yield _scores(difference, signed=True)


def _scores(sources: Numbers, *, signed: bool = False) -> Table:
    table = Table("source", "", "", "95 %")
    for source, found in sources.items():
        for name, value in found.items():
            if "/" not in name:
                low, high = found.get(f"{name}/low"), found.get(f"{name}/high")
                between = "" if low is None or high is None else f"{low:.3f} to {high:.3f}"
                table.add_row(Text(printable(source)), name, f"{value:+.3f}" if signed else f"{value:.3f}", between)
    return table
