"""Measure the cost of a session of a Python command in addition to the program's own work.

Sessions that are forked from a server that has imported the program's packages are compared with sessions that start
an interpreter each.

    python -m benchmarks.gateway_programs [--python /env/bin/python] [--program openai,langgraph] [--sessions 10]

`--python` needs langgraph and langchain-openai. CPU time is counted over all processes of a session; the program's own
work is the CPU time after its imports. Memory is the growth of all processes' proportional set size (PSS) with each
further open session; the program's own memory is the growth of an interpreter after its imports. Compare only numbers
of the same run.
"""

from __future__ import annotations

import argparse
import asyncio
import resource
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean

import psutil

import verl_mas
from verl_mas.config.schema import FaultSpec
from verl_mas.testing.scripted_llm import ScriptedLLM
from verl_mas.workflows.program import ReferredProgram

MOST_MS, MOST_MB = 60.0, 15.0
HEAD = """import json, os, sys, tempfile, time
def pss():
    with open("/proc/self/smaps_rollup") as file:
        return next(int(line.split()[1]) / 1000 for line in file if line.startswith("Pss:"))
"""
# Sessions wait as long as the file `gate` exists, so that their memory can be measured.
TAIL = """
task = json.load(sys.stdin)
answer = ask(task["messages"])
own = {"cpu": time.process_time() - started, "mb": pss() - held}
tempfile.mkstemp(dir=sys.argv[2])
while os.path.exists(sys.argv[1]):
    time.sleep(0.02)
outcome = {"answer": answer, "reward": 1.0, "info": own}
os.write(int(os.environ["VERL_MAS_OUTCOME_FD"]), json.dumps(outcome).encode())
"""
PROGRAMS = {
    "openai": """import openai
held, started = pss(), time.process_time()
client = openai.OpenAI()
def ask(messages):
    return client.chat.completions.create(model="solver", messages=messages).choices[0].message.content
""",
    "langgraph": """from langchain_openai import ChatOpenAI
from langgraph.graph import END, START, MessagesState, StateGraph
held, started = pss(), time.process_time()
model = ChatOpenAI(model="solver")
graph = StateGraph(MessagesState)
graph.add_node("solve", lambda state: {"messages": [model.invoke(state["messages"])]})
graph.add_edge(START, "solve")
graph.add_edge("solve", END)
app = graph.compile()
def ask(messages):
    return app.invoke({"messages": messages})["messages"][-1].content
""",
}


@dataclass(frozen=True)
class Cost:
    """The milliseconds and megabytes of a session, and of the program's own work in it."""

    ms: float
    own_ms: float
    mb: float
    own_mb: float

    def __str__(self) -> str:
        return f"{self.ms:.0f} ms with {self.own_ms:.0f} of its own work, {self.mb:.1f} MB"


class Measured:
    """A program to measure, and the folder in which each of its waiting sessions creates a file."""

    def __init__(self, python: str, program: str, fork: bool, folder: Path):
        file, self._gate, self._waiting = folder / f"{program}_program.py", folder / "gate", folder / "waiting"
        self._waiting.mkdir(exist_ok=True)
        file.write_text(HEAD + PROGRAMS[program] + TAIL)
        command = [python, str(file), str(self._gate), str(self._waiting)]
        self._program = ReferredProgram(agents=("solver",), command=command, import_once=fork)

    def cost(self, sessions: int) -> Cost:
        asyncio.run(self._play())  # the first session makes the fork server import the packages
        before = processor_s()
        own = [asyncio.run(self._play()) for _ in range(sessions)]
        spent = processor_s() - before
        mb = (asyncio.run(self._held(sessions + 1)) - asyncio.run(self._held(1))) / sessions
        cpu, own_mb = (fmean(each[name] for each in own) for name in ("cpu", "mb"))
        return Cost(1000 * spent / sessions, 1000 * cpu, mb, own_mb)

    async def _play(self) -> dict[str, float]:
        """Run one session. Return the CPU seconds and megabytes of the program's own work."""
        session = await verl_mas.arun(self._program, "2 + 2 = ?", ScriptedLLM("4"), faults=FaultSpec(retries=0))
        assert session.answer == "4" and session.team_reward == 1.0
        return {name: float(session.info[name]) for name in ("cpu", "mb")}

    async def _held(self, sessions: int) -> float:
        """Return the megabytes of all processes while this many sessions wait at the gate."""
        for file in self._waiting.iterdir():
            file.unlink()
        self._gate.touch()
        playing = [asyncio.ensure_future(self._play()) for _ in range(sessions)]
        while len(list(self._waiting.iterdir())) < sessions:
            await asyncio.sleep(0.05)
        held = sum(pss_mb(process.pid) for process in psutil.Process().children(recursive=True))
        self._gate.unlink()
        await asyncio.gather(*playing)
        return held


def processor_s() -> float:
    """Return the CPU seconds of all processes that this process has started."""
    ended = resource.getrusage(resource.RUSAGE_CHILDREN)
    alive = [process.cpu_times() for process in psutil.Process().children()]
    return ended.ru_utime + ended.ru_stime + sum(sum(times[:4]) for times in alive)


def pss_mb(pid: int) -> float:
    [line] = [line for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines() if line.startswith("Pss:")]
    return int(line.split()[1]) / 1000


def against(value: float, limit: float) -> str:
    return f"{value:.3g} of at most {limit:g}: {value / limit:.2f}x"


def main() -> None:
    command = argparse.ArgumentParser(description=__doc__)
    command.add_argument("--python", default=sys.executable)
    command.add_argument("--program", default=",".join(PROGRAMS))
    command.add_argument("--sessions", type=int, default=10)
    options = command.parse_args()
    for program in options.program.split(","):
        with tempfile.TemporaryDirectory() as folder:
            forked, alone = (
                Measured(options.python, program, fork, Path(folder)).cost(options.sessions) for fork in (True, False)
            )
        print(f"{program}, forked: {forked}")
        print(f"{program}, an interpreter each: {alone}")
        more, as_one = forked.ms - forked.own_ms, alone.ms - alone.own_ms
        print(f"  ms above its own work: {against(more, MOST_MS)}; 1/{as_one / more:.0f} of an interpreter's")
        more, as_one = forked.mb - alone.own_mb, alone.mb - alone.own_mb
        print(f"  MB above its own {alone.own_mb:.1f}: {against(more, MOST_MB)}; 1/{as_one / more:.1f}", flush=True)


if __name__ == "__main__":
    main()
