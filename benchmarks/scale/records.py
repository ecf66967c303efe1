"""Measure session records by number of sessions: time to write, list, view and report them, disk space and memory.

    python -m benchmarks.scale.records [--sessions 1k,4k]

Sessions of three acts run with scripted replies of 300 tokens. The writer of an agent-loop worker writes them as the
sessions of two training steps, each session under a unique key. A file of advantages is added, as by the trainer. Times
are CPU time of one core.
"""

from __future__ import annotations

import argparse
import asyncio
import sysconfig
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

from benchmarks.scale.curve import MIB, memory, ratio, show, sizes
from benchmarks.scale.team import ACTS, AGENTS, Relay
from verl_mas.config.schema import PolicySpec, TrajectorySpec
from verl_mas.results.sessions.reader import SessionIndex
from verl_mas.results.sessions.report import report
from verl_mas.results.sessions.run import open_run
from verl_mas.results.sessions.view import ViewOptions, write_view
from verl_mas.rollout.trajectories import TrajectoryWriter
from verl_mas.run_folder.disk import size_of
from verl_mas.run_folder.metrics import names
from verl_mas.run_folder.metrics.file import MetricsFile
from verl_mas.run_folder.session_files import FOLDER, write_advantages
from verl_mas.testing.scripted_llm import ScriptedLLM
from verl_mas.verl_.row import RowKey
from verl_mas.workflow import Request, Task
from verl_mas.workflow.agents import resolve_agents
from verl_mas.workflow.run import run_session
from verl_mas.workflow.session import SessionConfig, SessionResult

STEPS, GROUP, PLAYED = 2, 8, 64
REPLY, QUESTION = 1200, 2000  # characters
T = TypeVar("T")


def played() -> list[SessionResult]:
    """Make sessions whose replies are different parts of Python's library."""
    text = "".join(path.read_text() for path in sorted(Path(sysconfig.get_path("stdlib")).glob("[a-d]*.py")))
    places = iter(range(0, len(text), REPLY))

    def reply(request: Request, branch: int) -> str:
        return text[(place := next(places)) : place + REPLY]

    config = SessionConfig(resolve_agents(AGENTS, {}, {"main": PolicySpec()}), {"main": ScriptedLLM(reply)})
    question = [{"role": "user", "content": text[-QUESTION:]}]

    async def play() -> list[SessionResult]:
        return [await run_session(Relay, Task(question, session=n % GROUP, uid="0"), config) for n in range(PLAYED)]

    return asyncio.run(play())


def write(folder: Path, results: list[SessionResult], sessions: int) -> None:
    for step in range(1, STEPS + 1):
        writer = TrajectoryWriter(TrajectorySpec(), folder / FOLDER, "a")
        for number in range(sessions // STEPS):
            result, uid = results[number % PLAYED], f"{step}-{number // GROUP}"
            result.session.task = replace(result.session.task, uid=uid, step=step, session=number % GROUP)
            writer.write(result, "finished")
            if number % GROUP == GROUP - 1:
                writer.end_group(uid)
        writer.compress()
        rows = (RowKey(f"{step}-{n // GROUP}", n % GROUP, i) for n in range(sessions // STEPS) for i in range(ACTS))
        write_advantages(folder / FOLDER, step, "a", {str(key): 0.25 for key in rows})
    metrics = MetricsFile(folder)
    for step in range(1, STEPS + 1):
        values = {"acts": 1.0, "reward/score": 0.5, "advantage/zero": 0.0, "malformed": 0.0}
        metrics.log({names.agent(agent, key): value for agent in AGENTS for key, value in values.items()}, step)


def measured(results: list[SessionResult], sessions: int) -> Iterator[tuple[str, float]]:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        seconds, _ = timed(lambda: write(folder, results, sessions))
        yield "write, us per session", 1e6 * seconds / sessions
        yield "on disk, kB per session", size_of(folder) / sessions / 1e3
        seconds, index = timed(lambda: SessionIndex(folder / FOLDER))
        assert len(index.entries) == sessions
        yield "list, us per session", 1e6 * seconds / sessions
        some = index.entries[:: max(1, sessions // 256)]
        seconds, _ = timed(lambda: list(index.records(index.entries[: len(some)])))
        yield "read one after the other, us each", 1e6 * seconds / len(some)
        before = memory()
        seconds, (page, _) = timed(lambda: write_view(folder, ViewOptions(force=True)))
        yield "view, us per session", 1e6 * seconds / sessions
        yield "view, MiB of the process", memory() - before
        yield "view, MiB of the page", sum(f.stat().st_size for f in (page, *page.parent.glob("*_data/*"))) / MIB
        seconds, _ = timed(lambda: report(open_run(folder)).text())
        yield "report, ms", 1e3 * seconds


def timed(work: Callable[[], T]) -> tuple[float, T]:
    begin = time.process_time()
    result = work()
    return time.process_time() - begin, result


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sessions", type=sizes, default=sizes("1k,4k"))
    given = parser.parse_args(arguments).sessions
    results = played()
    curves: dict[str, dict[int, float]] = defaultdict(dict)
    for sessions in given:
        for name, value in measured(results, sessions):
            curves[name][sessions] = value
    show(f"records of sessions of {ACTS} acts, in {STEPS} steps", curves)
    for name in ("write", "list", "view"):
        curve = curves[f"{name}, us per session"]
        ratio(f"{name}, us per session at {given[-1]:,}", curve[given[-1]], f"at {given[0]:,}", curve[given[0]], 1.2)


if __name__ == "__main__":
    main()
