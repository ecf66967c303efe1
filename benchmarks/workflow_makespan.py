"""The makespan of independent sessions, relative to the longest of them and to a scheduler with barriers.

    python benchmarks/workflow_makespan.py

512 sessions of solver_verifier with 3 rounds; every act takes a log-normal time, median 100 ms, sigma 1.
The critical path is the longest session. The lock-step scheduler makes each agent call a batch, which waits for its
slowest act; the latencies are the same.
"""

from __future__ import annotations

import argparse
import asyncio
import math
import random
import time

from verl_mas.config.schema import PolicySpec
from verl_mas.testing.scripted_llm import ScriptedLLM
from verl_mas.workflow import Generation, Request, Task
from verl_mas.workflow.members import members_of
from verl_mas.workflow.run import run_session
from verl_mas.workflow.session import SessionConfig
from verl_mas.workflows.solver_verifier import SolverVerifier

ROUNDS = 3
# The order in which solver_verifier calls its agents when no proposal is approved.
CALLS = [(agent, turn) for turn in range(ROUNDS) for agent in ("solver", "verifier")][:-1]


def latency(seed: int, session: str, agent: str, turn: int, median: float) -> float:
    return median * math.exp(random.Random(f"{seed}/{session}/{agent}/{turn}").gauss(0.0, 1.0))


class TimedLLM(ScriptedLLM):
    """A scripted LLM whose latency depends on the act, so that it is the same for both schedulers."""

    def __init__(self, seed: int, median: float):
        super().__init__({"solver": "\\boxed{4}", "verifier": "<verify>reject</verify>"})
        self.seed, self.median = seed, median

    async def generate(self, request: Request, n: int = 1) -> list[Generation]:
        await asyncio.sleep(latency(self.seed, request.session, request.agent, request.turn, self.median))
        return await super().generate(request, n)


async def free_running(sessions: int, seed: int, median: float) -> float:
    llm = TimedLLM(seed, median)
    config = SessionConfig(members_of(SolverVerifier.agents, {}, {"main": PolicySpec()}), {"main": llm})
    tasks = [Task([{"role": "user", "content": "2 + 2?"}], session=number) for number in range(sessions)]
    started = time.perf_counter()
    done = await asyncio.gather(*[run_session(lambda: SolverVerifier(max_rounds=ROUNDS), t, config) for t in tasks])
    seconds = time.perf_counter() - started
    assert all(len(session.session.replies) == len(CALLS) for session in done)
    return seconds


async def lock_step(sessions: int, seed: int, median: float) -> float:
    """Each call of each agent is a barrier over the batch."""
    started = time.perf_counter()
    for agent, turn in CALLS:
        waits = [latency(seed, f"task_{number}", agent, turn, median) for number in range(sessions)]
        await asyncio.gather(*[asyncio.sleep(wait) for wait in waits])
    return time.perf_counter() - started


def critical_path(sessions: int, seed: int, median: float) -> float:
    return max(
        sum(latency(seed, f"task_{number}", agent, turn, median) for agent, turn in CALLS) for number in range(sessions)
    )


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--sessions", type=int, default=512)
    parser.add_argument("--median", type=float, default=0.1)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    settings = (args.sessions, args.seed, args.median)
    path, free, locked = (
        critical_path(*settings),
        asyncio.run(free_running(*settings)),
        asyncio.run(lock_step(*settings)),
    )
    print(f"critical path {path:.2f} s, sessions {free:.2f} s, lock-step {locked:.2f} s")
    print(f"makespan / critical path: {free / path:.3f} (at most 1.05)")
    print(f"lock-step / makespan: {locked / free:.2f} (at least 2)")


if __name__ == "__main__":
    main()
