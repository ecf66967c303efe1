"""Report on a run: curves, a table of its agents and what is wrong; or compare two runs.

With one run: the metrics to watch, the agents, and findings with the steps at which they held. With two runs: their
difference, with intervals. --out writes the text and the curves as SVG;
--html writes one page with findings, curves and one task at four steps, which can be sent.
"""

from __future__ import annotations

from pathlib import Path

from verl_mas.cli._arguments import add_json, add_out, add_run, free, one_or_two
from verl_mas.cli._output import show
from verl_mas.cli._parser import Parser, UsageError
from verl_mas.errors import ConfigError
from verl_mas.run_folder.disk import write_whole, writing
from verl_mas.util.text import printable

FILES = ("report.txt", "curves.svg")


def parser() -> Parser:
    command = Parser("verl-mas report", __doc__)
    add_run(command, several=True)
    add_out(command, "a folder for the report and its curves")
    command.add_argument("--html", type=Path, metavar="FILE", help="a page to send: findings, curves, four sessions")
    add_json(command)
    return command


def main(argv: list[str]) -> int:
    options = parser().parse_args(argv)
    one_or_two(options.run)
    if options.force and not (options.out or options.html):
        raise UsageError("--force without --out", rule="it replaces what is in --out or --html", fix="give one of them")
    if options.html and free(options.html, options.force).suffix != ".html":
        fix = f"use --html {options.html.with_suffix('')}.html"
        raise ConfigError(f"--html {options.html}", rule="it is an HTML file", fix=fix)
    out = None if options.out is None else free(options.out, options.force, *FILES)
    from verl_mas.sessions.comparison import compare
    from verl_mas.sessions.report import report
    from verl_mas.sessions.run import open_run

    reports = [report(open_run(folder)) for folder in options.run]
    found = reports[0] if len(reports) == 1 else compare(*reports)
    files: list[str] = []
    if out is not None:
        with writing(out, "the report and its curves are written together"):
            files = list(map(str, found.write(out)))
    if options.html is not None:
        with writing(options.html, "the page is one file", "make room, or choose another --html"):
            options.html.parent.mkdir(parents=True, exist_ok=True)
            write_whole(options.html, found.html())
        files.append(str(options.html))
    paths = "".join(f"{path}\n" for path in ["", *files]) if files else ""
    # The error that ended a run may have text of a model.
    show(options, found.json() | ({"written": files} if files else {}), printable(found.text()) + paths)
    return 0
