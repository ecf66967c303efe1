"""Evaluate an exported team on the tasks of a file: pass@k with intervals, and a row per agent.

Rewards are computed as in training, by the workflow or by verl's reward function. Sessions are written as they end. If
an evaluation was stopped, the same command continues it, and repeats sessions that failed. Intervals are 95 %
confidence intervals over tasks.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
from collections.abc import Iterator, Sequence
from os.path import realpath
from pathlib import Path
from typing import TYPE_CHECKING

from verl_mas.cli._arguments import add_json, add_limit, add_out, add_settings, add_team, load_runtime, values, whole
from verl_mas.cli._output import console, write_json
from verl_mas.cli._parser import Parser, UsageError
from verl_mas.errors import ConfigWarning, SessionsFailed
from verl_mas.run_folder.metrics.names import control_of
from verl_mas.util.text import printable

if TYPE_CHECKING:
    from rich.console import RenderableType

    from verl_mas.results.serve.evaluate import Table as Numbers
    from verl_mas.verl_.types import Fields

EVERY_S = 10.0  # seconds between two lines of progress in a pipe or a file


def parser() -> Parser:
    command = Parser("verl-mas eval", __doc__)
    add_team(command)
    command.add_argument("--data", required=True, type=Path, metavar="FILE", help="parquet or jsonl, as for training")
    command.add_argument("--n", type=whole(1), default=1, metavar="N", help="sessions per task")
    add_limit(command, "tasks at most: the first ones of the file")
    command.add_argument("--compare", type=Path, metavar="DIR", help="another team, on the same tasks")
    add_out(command, "the file of the sessions; without it DIR/eval/FILE.jsonl")
    one = command.add_mutually_exclusive_group()
    add_settings(one, "--sampling", "settings over those of every agent's validation, such as temperature=1.0")
    one.add_argument("--training-sampling", action="store_true", help="sample as in training, not as in validation")
    add_json(command)
    return command


def main(argv: list[str]) -> int:
    options = parser().parse_args(argv)
    if options.compare and options.endpoint:
        rule = "both teams would act by the same endpoint"
        raise UsageError("--compare with --endpoint", rule=rule, fix="evaluate each team, with an --out of its own")
    if options.compare and realpath(options.compare) == realpath(options.dir):
        rule = "it is another team than DIR"
        raise UsageError(f"--compare {options.compare}", rule=rule, fix="give its folder, or leave it out")
    if options.out and realpath(options.out) == realpath(options.data):
        rule = "the sessions would take the place of the tasks"
        raise UsageError(f"--out {options.out}, the file of --data", rule=rule, fix="give --out another file")
    teams = [options.dir, *([options.compare] if options.compare else [])]
    evaluated = [_evaluated(options, folder, number) for number, folder in enumerate(teams)]

    from verl_mas.results.serve.evaluate import difference, summary

    summaries = [{"dir": str(folder), **summary(records)} for folder, records in zip(teams, evaluated, strict=True)]
    compared = difference(*evaluated) if len(evaluated) == 2 else {}
    if not options.json:
        for table in tables(summaries, compared):
            console().print(table)
    for folder, records in zip(teams, evaluated, strict=True):
        _check(folder, records)
    if options.json:
        write_json({"teams": summaries, **({"difference": compared} if compared else {})})
    return 0


def _evaluated(options: argparse.Namespace, folder: Path, number: int) -> list[Fields]:
    """Return the sessions of one team. Sessions that the team's file already contains are not run again."""
    from tqdm import tqdm

    from verl_mas.config.values import load_dataclass
    from verl_mas.results.serve.endpoints import EngineSettings
    from verl_mas.results.serve.evaluate import Evaluation, Results, identity_of, read_rows
    from verl_mas.results.serve.places import open_export
    from verl_mas.results.serve.runtime import TRAINING, checked_sampling

    team = open_export(folder)
    rows = read_rows(options.data, str(team.verl.get("data.prompt_key", "prompt")), options.limit)
    given = checked_sampling(values(options.sampling), "--sampling")
    sampling = TRAINING if options.training_sampling else given
    engine = load_dataclass(EngineSettings, values(options.engine), "--engine")
    served = {name: getattr(engine, name) for name in ("dtype", "max_model_len", "seed")} | values(options.endpoint)
    out = options.out or folder / "eval" / f"{options.data.stem}.jsonl"
    if number and options.out:
        out = options.out.with_suffix(f".compare{options.out.suffix}")
    results = Results.open(out, identity_of(folder, team, options.data, served, sampling), force=options.force)
    if missing := len(results.missing(len(rows), options.n)):
        runtime = load_runtime(options, folder, sampling)
        settings = [agent.spec.validation_sampling for agent in runtime.agents.values()]
        if options.n > 1 and all(one.get("temperature") == 0 for one in settings):
            value = f"--n {options.n} with temperature 0 of all agents"
            reason = "greedy sessions on one task are equal, so pass@k is pass@1"
            warning = ConfigWarning(value, reason, "add --sampling temperature=1.0, or --training-sampling")
            sys.stderr.write(f"warning: {warning}\n")
        earned, every_s = 0.0, 0.1 if sys.stderr.isatty() else EVERY_S
        with tqdm(total=missing, desc=str(folder), unit=" sessions", mininterval=every_s) as progress:

            def show(record: Fields) -> None:
                nonlocal earned
                earned += record["value"]
                progress.set_postfix_str(f"mean {earned / (progress.n + 1):.3f}", refresh=False)
                progress.update()

            evaluation = Evaluation(runtime, rows, options.n, results)
            asyncio.run(evaluation.run(show))
    sys.stderr.write(f"{out}\n")
    return results.of(len(rows), options.n)


def _check(folder: Path, records: list[Fields]) -> None:
    """Raise an error instead of giving a score if too many sessions failed, as validation does."""
    from verl_mas.results.serve.places import open_export

    failed = [record for record in records if record["failed"]]
    limit = open_export(folder).faults.max_dropped_share
    if len(failed) > limit * len(records) or len(failed) == len(records):
        first = failed[0]["faults"][-1]
        raise SessionsFailed(
            f"{len(failed)} of {len(records)} sessions of {folder} failed\n"
            f"  the first: {first['kind']}: {first['cause']}\n"
            f"  rule: they count as 0, which is no score with more than mas.faults.max_dropped_share={limit:g}\n"
            "  fix:  remove the cause; the same command repeats the sessions that failed"
        )


def tables(teams: Sequence[Fields], difference: Numbers) -> Iterator[RenderableType]:
    from rich.table import Table
    from rich.text import Text

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


def _scores(sources: Numbers, *, signed: bool = False) -> RenderableType:
    from rich.table import Table
    from rich.text import Text

    table = Table("source", "", "", "95 %")
    for source, found in sources.items():
        for name, value in found.items():
            if "/" not in name:
                low, high = found.get(f"{name}/low"), found.get(f"{name}/high")
                between = "" if low is None or high is None else f"{low:.3f} to {high:.3f}"
                base = control_of(source, sources)
                label = printable(source) + (f" (control of {base})" if base else "")
                table.add_row(Text(label), name, f"{value:+.3f}" if signed else f"{value:.3f}", between)
    return table
