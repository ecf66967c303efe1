"""The CPU time of an act without the LLM and the tokenizer, and the memory of a live session.

    python benchmarks/workflow_overhead.py

1,000 sessions of solver_verifier with 3 rounds are live at once on one core. The overhead is the process's CPU time
per act, minus that of a loop that only calls the same LLM. The memory is traced while all sessions wait in their second
act, with prompts of 2,000 characters.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import time
import tracemalloc

from verl_mas.config.schema import PolicySpec
from verl_mas.testing.scripted_llm import ScriptedLLM
from verl_mas.workflow import Generation, LLMClient, Request, Task
from verl_mas.workflow.members import members_of
from verl_mas.workflow.run import run_session
from verl_mas.workflow.session import SessionConfig
from verl_mas.workflows.solver_verifier import SolverVerifier

ROUNDS, ACTS = 3, 5


class PlainLLM:
    """Replies after a wait, with a fixed number of tokens, without a tokenizer."""

    def __init__(self, wait: float):
        self.wait = wait
        self.tokens = list(range(512))
        self.mask, self.log_probs = [1] * 512, [-0.5] * 512

    async def generate(self, request: Request, n: int = 1) -> list[Generation]:
        await asyncio.sleep(self.wait)
        text = "<verify>reject</verify>" if request.agent == "verifier" else "\\boxed{4}"
        return [Generation(text, "stop", self.tokens, self.tokens, self.mask, self.log_probs, 512) for _ in range(n)]


def config_of(llm: LLMClient) -> SessionConfig:
    return SessionConfig(members_of(SolverVerifier.agents, {}, {"main": PolicySpec()}), {"main": llm})


async def team_seconds(sessions: int, wait: float) -> float:
    config = config_of(PlainLLM(wait))
    tasks = [Task([{"role": "user", "content": "x" * 2000}], session=number) for number in range(sessions)]
    started = time.process_time()
    done = await asyncio.gather(*[run_session(lambda: SolverVerifier(max_rounds=ROUNDS), t, config) for t in tasks])
    rows = [session.session.rows() for session in done]
    seconds = time.process_time() - started
    assert sum(map(len, rows)) == sessions * ACTS
    return seconds


async def bare_seconds(sessions: int, wait: float) -> float:
    llm = PlainLLM(wait)

    async def session() -> None:
        for agent in ["solver", "verifier"] * (ACTS // 2) + ["solver"]:
            await llm.generate(Request(agent, "s", 0, []))

    started = time.process_time()
    await asyncio.gather(*[session() for _ in range(sessions)])
    return time.process_time() - started


async def live_bytes(sessions: int) -> float:
    """Traced bytes per session while all wait in their second act."""
    llm = ScriptedLLM({"solver": "s" * 2000, "verifier": "v" * 2000}, latency=3600.0)
    llm.latency = lambda rng: 0.0 if len(llm.requests) <= sessions else 3600.0
    config = config_of(llm)
    tracemalloc.start()
    before, _ = tracemalloc.get_traced_memory()
    running = [
        asyncio.ensure_future(
            run_session(
                lambda: SolverVerifier(max_rounds=ROUNDS),
                Task([{"role": "user", "content": f"{number}" + "x" * 2000}], session=number),
                config,
            )
        )
        for number in range(sessions)
    ]
    while llm.in_flight < sessions or len(llm.requests) < 2 * sessions:
        await asyncio.sleep(0.01)
    gc.collect()
    after, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    for task in running:
        task.cancel()
    await asyncio.gather(*running, return_exceptions=True)
    return (after - before) / sessions


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--sessions", type=int, default=1000)
    args = parser.parse_args()
    wait = 1.0
    team = asyncio.run(team_seconds(args.sessions, wait))
    bare = asyncio.run(bare_seconds(args.sessions, wait))
    acts = args.sessions * ACTS
    print(f"{acts} acts: {team:.2f} s of CPU in sessions, {bare:.2f} s in a bare loop")
    print(f"overhead per act: {(team - bare) / acts * 1e3:.3f} ms (at most 1)")
    print(f"memory per live session: {asyncio.run(live_bytes(args.sessions)) / 1e3:.1f} kB (at most 200)")


if __name__ == "__main__":
    main()
