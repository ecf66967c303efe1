"""Write the sessions of a run for other tools, and print what is left out: docs/use/sessions.md has the formats."""

import math
from argparse import Namespace
from collections import Counter
from collections.abc import Iterator

from verl_mas.cli._arguments import add_json, add_out, add_run, add_steps, free, steps_of
from verl_mas.cli._output import show
from verl_mas.cli._parser import Parser, UsageError
from verl_mas.errors import ConfigError
from verl_mas.run_folder.disk import writing
from verl_mas.run_folder.records import Record
from verl_mas.run_folder.session_files import partition_of

TABLES = ("sft", "preferences")


def parser() -> Parser:
    command = Parser("verl-mas export-sessions", __doc__)
    add_run(command, what="the folder of a run (trainer.default_local_dir), or of Harbor's trajectories")
    what = "atif: Harbor's trajectories; otel: spans (OTLP/JSON); sft: chats; preferences: pairs of replies to a prompt"
    command.add_argument("--format", required=True, choices=("atif", "otel", *TABLES), help=what)
    add_out(command, "the file; for atif the folder, which gets a file per session", required=True)
    add_steps(command)
    command.add_argument("--validation", action="store_true", help="the sessions of validations, not of the training")
    command.add_argument("--min-reward", type=float, metavar="X", help="for sft: only acts of at least this reward")
    add_json(command)
    return command


def main(argv: list[str]) -> int:
    options = parser().parse_args(argv)
    if options.min_reward is not None and options.format != "sft":
        raise UsageError("--min-reward", rule="it chooses acts to fine-tune on", fix="use it with --format sft")
    if not math.isfinite(options.min_reward or 0):
        raise UsageError(f"--min-reward {options.min_reward}", rule="it is a number", fix="use --min-reward 0.5")
    from verl_mas.results.formats import atif, otel, tables

    out, counts = free(options.out, options.force), Counter[str]()
    if out.is_dir() and (options.format != "atif" or any(path.suffix != ".json" for path in out.iterdir())):
        raise ConfigError(f"--out {out} is a folder", rule="one of JSON files is replaced", fix="choose another --out")
    if options.format == "atif" and out.is_file():
        raise ConfigError(f"--out {out} is a file", rule="it gets a file per session", fix="choose another --out")
    if options.format in TABLES and out.suffix not in ("", ".parquet"):
        fix = f"use {out.with_suffix('.parquet')}"
        raise ConfigError(f"--out {out}", rule="a table is written as parquet", fix=fix)
    name, records = sessions_of(options, counts)
    with writing(out, "what other tools read is written as a whole"):
        out.parent.mkdir(parents=True, exist_ok=True)
        if options.format == "atif":
            atif.write_trajectories(records, out, counts, name)
        elif options.format == "otel":
            otel.write_spans(records, out, counts, name)
        elif options.format == "sft":
            tables.write_table(tables.chats(records, counts, options.min_reward), out, counts)
        else:
            tables.write_table(tables.preferences(records, counts), out, counts)
    text = "".join(f"{count} {what}\n" for what, count in counts.items() if count)
    show(options, {"out": str(out), "counts": counts}, f"{out}\n{text}")
    return 0


def sessions_of(options: Namespace, counts: Counter[str]) -> tuple[str, Iterator[Record]]:
    """Return the name and the records of a run, or of a folder of trajectories."""
    from verl_mas.results.formats.atif import read_trajectories, trajectories
    from verl_mas.results.formats.sessions import records_of
    from verl_mas.results.sessions.run import is_run, open_run

    if not is_run(options.run) and (paths := trajectories(options.run)):
        if options.format not in TABLES or options.steps or options.validation:
            rule = f"of trajectories all are read, for --format {' or '.join(TABLES)}"
            raise UsageError(f"{options.run}", rule=rule, fix="give these, or the folder of a run")
        return options.run.name, read_trajectories(paths, counts)
    run = open_run(options.run)
    return run.name, records_of(run, partition_of(options.validation), steps_of(options.steps), counts)
