"""Write the sessions of a run for other tools, and print what is left out: docs/sessions.md has the formats."""

from __future__ import annotations

from collections import Counter

from verl_mas.cli._arguments import add_json, add_out, add_run, add_steps, free, steps_of
from verl_mas.cli._output import show
from verl_mas.cli._parser import Parser, UsageError
from verl_mas.errors import ConfigError
from verl_mas.run_folder.disk import writing
from verl_mas.run_folder.session_files import partition_of


def parser() -> Parser:
    command = Parser("verl-mas export-sessions", __doc__)
    add_run(command)
    what = "atif: Harbor's trajectories; otel: spans (OTLP/JSON); sft: chats; preferences: pairs of replies to a prompt"
    command.add_argument("--format", required=True, choices=("atif", "otel", "sft", "preferences"), help=what)
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
    from verl_mas.formats import atif, otel, tables
    from verl_mas.formats.sessions import records_of
    from verl_mas.sessions.run import open_run

    run, out, counts = open_run(options.run), free(options.out, options.force), Counter[str]()
    if out.is_dir() and (options.format != "atif" or any(path.suffix != ".json" for path in out.iterdir())):
        raise ConfigError(f"--out {out} is a folder", rule="one of JSON files is replaced", fix="choose another --out")
    records = records_of(run, partition_of(options.validation), steps_of(options.steps), counts)
    with writing(out, "what other tools read is written as a whole"):
        out.parent.mkdir(parents=True, exist_ok=True)
        if options.format == "atif":
            atif.write_trajectories(records, out, counts, run.name)
        elif options.format == "otel":
            otel.write_spans(records, out, counts, run.name)
        elif options.format == "sft":
            tables.write_table(tables.chats(records, counts, options.min_reward), out, counts)
        else:
            tables.write_table(tables.preferences(records, counts), out, counts)
    text = "".join(f"{count} {what}\n" for what, count in counts.items() if count)
    show(options, {"out": str(out), "counts": counts}, f"{out}\n{text}")
    return 0
