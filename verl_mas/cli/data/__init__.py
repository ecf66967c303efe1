"""Write a data set in verl's format: generated, public, or rows of your own.

`rows` converts a file of rows into a file that verl reads. The other names are data sets of this package or of an
installed package. Each writes train.parquet, test.parquet, validation.parquet and manifest.json into a folder.
"""

import argparse
import inspect
from collections import Counter
from collections.abc import Mapping
from itertools import islice
from pathlib import Path

from verl_mas.checks.data import prompt_fault
from verl_mas.cli._arguments import add_json, add_limit, add_out, free
from verl_mas.cli._output import show
from verl_mas.cli._parser import Parser
from verl_mas.data import own_rows, sources
from verl_mas.data.dataset import DATA_SETS, FILES, MANIFEST, Loader, Prepared, write_parquet
from verl_mas.environment.grading.forms import MARKS
from verl_mas.errors import ConfigError, ConfigWarning
from verl_mas.run_folder.disk import writing
from verl_mas.util.text import printable
from verl_mas.verl_.row import DATA_SOURCE, GROUND_TRUTH, REWARD_MODEL

ROWS = "rows"
ABOUT = """Rows of your own, from JSON lines, JSON, CSV or parquet, as one parquet file that verl reads.

A template makes the prompt, with columns in braces:

    verl-mas data rows my.jsonl --out train.parquet \\
        --template "Solve: {problem}" --answer solution

Without --template the prompt is the column `question`. A column that holds messages is taken as it is:
--template "{messages}".
"""
BESIDE = ("corpus.jsonl", "model")  # files that some data sets write next to their rows


def parser(only: str | None = None) -> Parser:
    """Make the parser of `verl-mas data`. With `only`, the parser has one data set, and other data sets are not
    imported."""
    command = Parser("verl-mas data", __doc__)
    names = command.add_subparsers(metavar="NAME", required=True)
    if only in (None, ROWS):
        add_row_arguments(names.add_parser(ROWS, help=ABOUT.splitlines()[0], description=ABOUT))
    for name in DATA_SETS if only is None else [only] if only != ROWS else []:
        dataset = DATA_SETS[name]()
        about = inspect.cleandoc(dataset.__doc__ or "")
        below = names.add_parser(name, help=about.partition("\n")[0], description=about)
        dataset.arguments(below)
        add_out(below, "the folder to write", required=True)
        add_json(below)
        below.set_defaults(dataset=dataset)
    return command


def main(argv: list[str], load: Loader = sources.from_hub) -> int:
    options = parser(argv[0] if argv and not argv[0].startswith("-") else None).parse_args(argv)
    if "dataset" not in options:
        return write_rows(options)
    free(options.out, options.force, *FILES.values(), MANIFEST, *BESIDE)
    prepared = options.dataset.prepare(options, load)
    with writing(options.out, "a data set is a folder of files"):
        manifest = prepared.write(options.out)
    show(options, manifest, _report(options.out, manifest, prepared))
    return 0


def _report(folder: Path, manifest: Mapping[str, object], prepared: Prepared) -> str:
    counts, checksums = manifest["rows"], manifest["sha256"]
    assert isinstance(counts, dict) and isinstance(checksums, dict)
    rows = ", ".join(f"{count} rows in {FILES[split]}" for split, count in counts.items())
    lines = [f"{folder}: {rows}; {MANIFEST} says what they are"]
    if manifest["train_duplicates_dropped"]:
        lines.append(f"dropped: {manifest['train_duplicates_dropped']} training rows that are there twice")
    if manifest["train_rows_also_in_test"]:
        lines.append(f"dropped: {manifest['train_rows_also_in_test']} training rows that are also in the test")
    for name, source in prepared.sources.items():
        if source.get("revision_pinned") is False:
            pin = f"--revision {name}={source['revision']}"
            lines.append(f"{name}: no revision is pinned; this is {source['revision']}. To repeat it, add {pin}")
    lines += ["sha256 of the rows:", *(f"{sha256}  {FILES[split]}" for split, sha256 in checksums.items())]
    return "".join(f"{line}\n" for line in lines)


# `verl-mas data rows`.


def add_row_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("file", metavar="FILE", type=Path, help=", ".join(own_rows.FORMATS))
    add_out(parser, "the parquet file to write", required=True)
    parser.add_argument("--template", default="{question}", metavar="TEXT", help="the user's message")
    parser.add_argument("--system", metavar="TEXT", help="a template of a system message before it")
    truth = parser.add_mutually_exclusive_group()
    truth.add_argument("--answer", default="answer", metavar="COLUMN", help="the ground truth")
    truth.add_argument("--no-answer", action="store_true", help="there is no ground truth: the workflow rewards")
    source = "a template of verl's data_source, by which metrics are told apart and verl chooses a reward function"
    parser.add_argument("--source", metavar="TEXT", help=f"{source}; default: the name of the file")
    parser.add_argument("--split", default="train", help="what extra_info.split says")
    parser.add_argument("--images", metavar="COLUMN", help="paths of images, which are stored in the parquet file")
    kept = "also keep this column, in task.extra_info; may be given several times"
    parser.add_argument("--keep", action="append", default=[], metavar="COLUMN", help=kept)
    add_limit(parser, "rows at most, from the first")
    add_json(parser)


def write_rows(options: argparse.Namespace) -> int:
    out = free(options.out, options.force)
    if out.suffix != ".parquet":
        raise ConfigError(f"--out {out}", rule="verl reads parquet", fix=f"use --out {out.with_suffix('.parquet')}")
    source = options.source or options.file.name.partition(".")[0].replace("{", "{{").replace("}", "}}")
    form = own_rows.RowFormat(
        prompt=options.template,
        answer=None if options.no_answer else options.answer,
        source=source,
        split=options.split,
        system=options.system,
        images=options.images,
        keep=options.keep,
    )
    rows = own_rows.convert(islice(own_rows.read(options.file), options.limit), form, options.file.parent)
    found = (prompt_fault(f"the prompt of row {number}", row[own_rows.PROMPT]) for number, row in enumerate(rows, 1))
    fault = next(filter(None, found), None)
    if fault:
        raise fault
    doubt: ConfigWarning | None = None
    truths = (str(row[REWARD_MODEL][GROUND_TRUTH]) for row in rows)
    solution = next((truth for truth in truths if any(mark in truth for mark in MARKS.values())), None)
    if solution:
        reason, fix = "an answer is compared with it", "write the answer alone"
        doubt = ConfigWarning(f"a ground truth that is a solution: {solution!r:.120}", reason, fix)
    if answered := next((n for n, row in enumerate(rows, 1) if row[own_rows.PROMPT][-1]["role"] == "assistant"), 0):
        reason, fix = "the model answers what follows it", "leave it out: a known answer belongs in --answer"
        doubt = ConfigWarning(f"the prompt of row {answered} ends with a message of the assistant", reason, fix)
    write_parquet(rows, out)
    sources, prompt = Counter(str(row[DATA_SOURCE]) for row in rows), rows[0][own_rows.PROMPT]
    head = f"{out}: {len(rows)} rows; data_source {', '.join(sources)}\nthe first prompt:\n"
    lines = "".join(f"  {message['role']}: {message['content'][:500]}\n" for message in prompt)
    warning = f"warning: {doubt}\n" if doubt else ""
    written = {"file": out, "rows": len(rows), "data_sources": sources, "first_prompt": prompt, "warning": warning}
    show(options, written, head + printable(lines) + warning)
    return 0
