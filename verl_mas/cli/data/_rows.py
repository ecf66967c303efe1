"""Rows of your own, from JSON lines, JSON, CSV or parquet, as one parquet file that verl reads.

A template makes the prompt, with columns in braces:

    verl-mas data rows my.jsonl --out train.parquet \\
        --template "Solve: {problem}" --answer solution

Without --template the prompt is the column `question`. A column that holds messages is taken as it is:
--template "{messages}".
"""

from __future__ import annotations

import argparse
from collections import Counter
from itertools import islice
from pathlib import Path

from verl_mas.cli._arguments import add_json, add_limit, add_out, free
from verl_mas.cli._output import show
from verl_mas.data.own_rows import FORMATS
from verl_mas.errors import ConfigError
from verl_mas.util.text import printable

ROWS, ABOUT = "rows", __doc__


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("file", metavar="FILE", type=Path, help=", ".join(FORMATS))
    add_out(parser, "the parquet file to write", required=True)
    parser.add_argument("--template", default="{question}", metavar="TEXT", help="the user's message")
    parser.add_argument("--system", metavar="TEXT", help="a template of a system message before it")
    parser.add_argument("--answer", default="answer", metavar="COLUMN", help="the ground truth")
    parser.add_argument("--no-answer", action="store_true", help="there is no ground truth: the workflow rewards")
    source = "a template of verl's data_source, by which metrics are told apart and verl chooses a reward function"
    parser.add_argument("--source", metavar="TEXT", help=f"{source}; default: the name of the file")
    parser.add_argument("--split", default="train", help="what extra_info.split says")
    parser.add_argument("--images", metavar="COLUMN", help="paths of images, which are stored in the parquet file")
    kept = "also keep this column, in task.extra_info; may be given several times"
    parser.add_argument("--keep", action="append", default=[], metavar="COLUMN", help=kept)
    add_limit(parser, "rows at most, from the first")
    add_json(parser)


def write_rows(options: argparse.Namespace) -> int:
    from verl_mas.data import own_rows
    from verl_mas.data.prepare import write_parquet
    from verl_mas.row import DATA_SOURCE

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
    write_parquet(rows, out)
    sources, prompt = Counter(str(row[DATA_SOURCE]) for row in rows), rows[0][own_rows.PROMPT]
    head = f"{out}: {len(rows)} rows; data_source {', '.join(sources)}\nthe first prompt:\n"
    lines = "".join(f"  {message['role']}: {message['content'][:500]}\n" for message in prompt)
    found = {"file": out, "rows": len(rows), "data_sources": sources, "first_prompt": prompt}
    show(options, found, head + printable(lines))
    return 0
