"""Write a data set in verl's format: generated, public, or rows of your own.

`rows` turns a file of rows into one that verl reads. The other names are data sets, of this package or of an installed
one: each writes train.parquet, test.parquet, validation.parquet and manifest.json into a folder.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from pathlib import Path

from verl_mas.cli._arguments import add_json, add_out, free
from verl_mas.cli._output import show
from verl_mas.cli._parser import Parser
from verl_mas.cli.data._rows import ABOUT, ROWS, add_arguments, write_rows
from verl_mas.data import sources
from verl_mas.data.dataset import DATA_SETS, Loader
from verl_mas.data.prepare import FILES, MANIFEST, Prepared
from verl_mas.run_folder.disk import writing

BESIDE = ("corpus.jsonl", "model")  # What some data sets write beside their rows


def parser(only: str | None = None) -> Parser:
    """With `only` one of the data sets; the others are not imported."""
    command = Parser("verl-mas data", __doc__)
    names = command.add_subparsers(metavar="NAME", required=True)
    if only in (None, ROWS):
        add_arguments(names.add_parser(ROWS, help=_first(ABOUT), description=ABOUT))
    for name in DATA_SETS if only is None else [only] if only != ROWS else []:
        dataset = DATA_SETS[name]()
        about = inspect.cleandoc(dataset.__doc__ or "")
        below = names.add_parser(name, help=_first(about), description=about)
        dataset.arguments(below)
        add_out(below, "the folder to write", required=True)
        add_json(below)
        below.set_defaults(dataset=dataset)
    return command


def _first(text: str) -> str:
    return text.partition("\n")[0]


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
        verb = "kept" if manifest["overlap_kept"] else "dropped"
        lines.append(f"{verb}: {manifest['train_rows_also_in_test']} training rows that are also in the test")
    for name, source in prepared.sources.items():
        if source.get("revision_pinned") is False:
            pin = f"--revision {name}={source['revision']}"
            lines.append(f"{name}: no revision is pinned; this is {source['revision']}. To repeat it, add {pin}")
    lines += ["sha256 of the rows:", *(f"{sha256}  {FILES[split]}" for split, sha256 in checksums.items())]
    return "".join(f"{line}\n" for line in lines)
