"""Look at the sessions of a run: one HTML page with every prompt, reply, reward and advantage.

The page first shows one task at up to four steps of the run: what each agent wrote, and its reward. With two
runs, the page has the sessions of both, and shows the replies of both to the same task side by side.

The page needs no network and no server. With many sessions, their texts are in a folder next to the page: copy
both.
"""

import sys

import verl_mas.cli._arguments as shared
from verl_mas.cli._output import show
from verl_mas.cli._parser import Parser, UsageError


def parser() -> Parser:
    command = Parser("verl-mas view", __doc__)
    shared.add_run(command, several=True)
    shared.add_out(command, "the HTML file; without it view.html in the folder of the run, compare.html for two runs")
    shared.add_steps(command)
    shared.add_limit(command, "sessions at most, the newest ones")
    command.add_argument("--live", action="store_true", help="write what is new until Ctrl-C; an open page follows")
    what = "--live, and served to browsers of this machine, where notes on sessions can be written"
    command.add_argument("--notes", action="store_true", help=what)
    port = "of --notes; 0: a free one"
    command.add_argument("--port", type=shared.whole(0, 65535), default=0, metavar="N", help=port)
    shared.add_json(command)
    return command


def main(argv: list[str]) -> int:
    from verl_mas.results.sessions.view import ViewOptions, follow, note_server, write_view

    options = parser().parse_args(argv)
    shared.one_or_two(options.run)
    if options.port and not options.notes:
        raise UsageError(f"--port {options.port}", rule="only --notes serves the page", fix="add --notes")
    listens = shared.listening(shared.LOOPBACK, options.port) if options.notes else None
    live = options.live or options.notes
    wanted = ViewOptions(options.out, options.force, shared.steps_of(options.steps), options.limit, notes=options.notes)
    out, view = write_view(options.run, wanted, live, _progress if sys.stderr.isatty() else None)
    summary = {"page": str(out), "sessions": view.count}
    if listens is not None:
        summary["address"] = f"{shared.url_of(listens)}/{note_server(out, view).start(listens)}"
    show(options, summary, f"{summary.get('address', out)}: {view.count} sessions\n")
    if live:
        sys.stderr.write("Following the run. Ctrl-C ends it; the page stays.\n")
        sys.stdout.flush()
        follow(out, view)
    return 0


def _progress(done: int, of: int) -> None:
    sys.stderr.write(f"\r{done} of {of} steps read{'' if done < of else chr(10)}")
