"""Talk to an exported team in the terminal, and read what its agents say to each other.

Every line is a question, which the team gets with the conversation so far. /reset begins a new conversation, and
/quit ends.
"""

from __future__ import annotations

import sys
from collections import defaultdict
from collections.abc import Iterator
from contextlib import closing
from typing import TYPE_CHECKING

from verl_mas.cli._arguments import add_settings, add_team, values
from verl_mas.cli._parser import Parser
from verl_mas.cli._team import add_loading, loaded
from verl_mas.errors import SessionFault
from verl_mas.util.text import printable

if TYPE_CHECKING:
    from verl_mas.serve.runtime import Runtime
    from verl_mas.workflow.client import Message
    from verl_mas.workflow.loop_thread import LoopThread
    from verl_mas.workflow.streaming import ActText

COMMANDS = {"/reset": "begins a new conversation", "/quit": "ends"}
COLOURS = (36, 33, 35, 32, 34, 31)


def parser() -> Parser:
    command = Parser("verl-mas chat", __doc__)
    add_team(command)
    add_settings(command, "--sampling", "settings over those of every agent's validation, such as temperature=0.7")
    command.add_argument("--quiet", action="store_true", help="the answers only")
    add_loading(command)
    return command


def main(argv: list[str]) -> int:
    options = parser().parse_args(argv)
    from verl_mas.workflow.loop_thread import LoopThread

    with loaded(options, options.dir, values(options.sampling)) as runtime, closing(LoopThread("chat")) as loop:
        return _chat(runtime, loop, quiet=options.quiet)


def _chat(runtime: Runtime, loop: LoopThread, *, quiet: bool) -> int:
    """The exit code: 1 if a question without a terminal had no answer."""
    failed = False
    history: list[Message] = []
    _say(f"{runtime.name}: {', '.join(runtime.members)}. {_commands()}\n", sys.stdin.isatty())
    for line in _lines():
        if line.startswith("/"):
            if line == "/quit":
                break
            if line == "/reset":
                history = []
            else:
                sys.stderr.write(f"no command {line}: {_commands()}\n")
            continue
        asked = [*history, {"role": "user", "content": line}]
        try:
            answer = _answer(runtime, loop, asked, quiet=quiet)
        except SessionFault as fault:
            failed = True
            sys.stderr.write(printable(f"{fault}\n"))
        except KeyboardInterrupt:
            _say("\n(cancelled)\n")
        else:
            history = [*asked, {"role": "assistant", "content": answer}]
    return int(failed and not sys.stdin.isatty())


def _answer(runtime: Runtime, loop: LoopThread, asked: list[Message], *, quiet: bool) -> str:
    from verl_mas.serve.replies import answer_of
    from verl_mas.workflow.task import Task

    acts = Acts(list(runtime.members), colours=sys.stdout.isatty())
    ended = loop.result(runtime.session(Task(asked), listener=None if quiet else acts.add))
    if ended.result.failed:
        raise ended.result.faults[-1]
    answer = answer_of(ended.result.session).text
    if quiet or printable(answer).strip() != acts.last.strip():
        _say(f"{'' if quiet else '= '}{printable(answer)}\n")
    return answer


class Acts:
    """Writes the acts of a session: one as it is sampled, and those sampled meanwhile when they have ended."""

    def __init__(self, agents: list[str], *, colours: bool):
        self._agents, self._colours = agents, colours
        self._texts: dict[int, str] = defaultdict(str)
        self._shown: int | None = None
        self.last = ""

    def add(self, event: ActText) -> None:
        self._texts[event.act] += printable(event.text)
        if self._shown is None:
            self._shown = event.act
            _say(self._title(event.agent) + self._texts[event.act])
        elif event.act == self._shown:
            _say(printable(event.text))
        if event.last:
            self.last = self._texts.pop(event.act)
            _say("\n" if event.act == self._shown else f"\n{self._title(event.agent)}{self.last}\n")
            self._shown = None if event.act == self._shown else self._shown

    def _title(self, agent: str) -> str:
        if not self._colours:
            return f"[{agent}] "
        return f"\x1b[{COLOURS[self._agents.index(agent) % len(COLOURS)]}m[{agent}]\x1b[0m "


def _lines() -> Iterator[str]:
    while True:
        try:
            line = input("> " if sys.stdin.isatty() else "").strip()
        except (EOFError, KeyboardInterrupt):
            return
        if line:
            yield line


def _say(text: str, wanted: bool = True) -> None:
    if wanted:
        sys.stdout.write(text)
        sys.stdout.flush()


def _commands() -> str:
    return ", ".join(f"{name} {meaning}" for name, meaning in COMMANDS.items())
