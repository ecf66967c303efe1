"""Report on a run: curves, a table of its agents and what is wrong; or compare two runs.

With one run: the metrics to watch, the agents, and findings with the steps at which they held. With two runs: their
difference, with intervals. --html writes them as one page to send, with curves and one task at up to four steps.
"""

from pathlib import Path

from verl_mas.cli._arguments import add_json, add_run, free, one_or_two
from verl_mas.cli._output import show
from verl_mas.cli._parser import Parser, UsageError
from verl_mas.errors import ConfigError
from verl_mas.run_folder.disk import write_whole, writing
from verl_mas.util.text import printable


def parser() -> Parser:
    command = Parser("verl-mas report", __doc__)
    add_run(command, several=True)
    command.add_argument("--html", type=Path, metavar="FILE", help="a page to send: findings, curves, four sessions")
    command.add_argument("--force", action="store_true", help="replace the FILE that is there already")
    add_json(command)
    return command


def main(argv: list[str]) -> int:
    options = parser().parse_args(argv)
    one_or_two(options.run)
    page = options.html
    if options.force and page is None:
        raise UsageError("--force without --html", rule="it replaces the file of --html", fix="give --html")
    if page is not None and free(page, options.force).suffix != ".html":
        raise ConfigError(f"--html {page}", rule="it is an HTML file", fix=f"use --html {page.with_suffix('.html')}")
    from verl_mas.results.sessions.report import compare, report
    from verl_mas.results.sessions.run import open_run

    reports = [report(open_run(folder)) for folder in options.run]
    found = reports[0] if len(reports) == 1 else compare(*reports)
    if page is not None:
        with writing(page, "the page is one file", "make room, or choose another --html"):
            page.parent.mkdir(parents=True, exist_ok=True)
            write_whole(page, found.html())
    written = {} if page is None else {"written": str(page)}
    # The error that ended a run may contain a model's text, which could control the terminal.
    show(options, found.json() | written, printable(found.text()) + "".join(f"\n{path}\n" for path in written.values()))
    return 0
