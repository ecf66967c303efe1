"""Compare the engines of two policies on one GPU, awake together or in phases: `python benchmarks/serving_choice.py`.

Two engines share one CPU core, as two processes share a GPU by time slices. Each number is the time of a rollout
divided by the time of a single engine that does the work of both, with the same requests, sessions and lengths. Runs of
the three ways alternate; a number is the median of the ratios, with the smallest and the largest ratio. Times are CPU
seconds of the engines, so other programs on the core do not change the ratios.

A single engine, or an engine that is awake in phases, has the whole memory; engines that are awake together have half
of it each. The memory has room for the sequences of all sessions at once, or for a quarter of the sessions.
A change of engines costs nothing here. The last column is the cost of one change at which phases would be as slow as
engines that are awake together, as a share of the single engine's rollout.
"""

from __future__ import annotations

import argparse
import asyncio
import math
import os
import random
import statistics
import sys
import tempfile
from collections.abc import Awaitable, Callable, Sequence
from itertools import count
from multiprocessing import get_context
from multiprocessing.connection import Connection
from time import process_time

from transformers.utils.logging import disable_progress_bar

from verl_mas.testing.tiny_model import tiny_model
from verl_mas.trainer.pools.phases import TimeSlices

PROMPT, TURNS = 16, 4
SECONDS, STOP = "seconds", "stop"
Act = Callable[[str, int], Awaitable[None]]
Workload = Callable[[Act, random.Random], Awaitable[None]]


def serve(connection: Connection, path: str, core: int) -> None:
    """Run an engine in a process. It receives requests (number, tokens), and sends the numbers of finished requests.

    On SECONDS, it sends its CPU seconds. A list of one number sets the maximum of rows in a batch. STOP ends it.
    """
    os.sched_setaffinity(0, {core})
    import torch
    from transformers import AutoModelForCausalLM
    from transformers.utils.logging import disable_progress_bar

    from verl_mas.engines.transformers.batcher import ContinuousBatcher
    from verl_mas.engines.transformers.request import RequestSampling
    from verl_mas.engines.transformers.server import use_onednn

    torch.set_num_threads(1)
    disable_progress_bar()
    model = AutoModelForCausalLM.from_pretrained(path).eval()
    use_onednn(model)
    batcher = ContinuousBatcher(model, max_length=1024, decode=str)
    numbers = {}
    while True:
        while batcher.idle or connection.poll():
            message = connection.recv()
            if message == STOP:
                return
            if message == SECONDS:
                connection.send(process_time())
            elif isinstance(message, list):
                batcher.max_rows = message[0]
            else:
                number, tokens = message
                prompt = [3 + (number + i) % 250 for i in range(PROMPT)]
                sample = batcher.submit(prompt, RequestSampling(max_tokens=tokens, ignore_eos=True))
                numbers[sample] = number
        for sample in batcher.step():
            connection.send(numbers.pop(sample))


class Engine:
    """An engine in another process, which runs `serve`."""

    def __init__(self, path: str, core: int):
        context = get_context("spawn")
        self._connection, theirs = context.Pipe()
        self._process = context.Process(target=serve, args=(theirs, path, core), daemon=True)
        self._process.start()
        self._waiting: dict[int, asyncio.Future[None]] = {}
        self._numbers = count()

    def seconds(self) -> float:
        self._connection.send(SECONDS)
        found: float = self._connection.recv()
        return found

    def stop(self) -> None:
        self._connection.send(STOP)
        self._process.join()

    def attach(self, rows: int) -> None:
        self._connection.send([rows])
        asyncio.get_running_loop().add_reader(self._connection.fileno(), self._receive)

    def detach(self) -> None:
        asyncio.get_running_loop().remove_reader(self._connection.fileno())

    async def generate(self, tokens: int) -> None:
        number = next(self._numbers)
        done = self._waiting[number] = asyncio.get_running_loop().create_future()
        self._connection.send((number, tokens))
        await done

    def _receive(self) -> None:
        while self._connection.poll():
            self._waiting.pop(self._connection.recv()).set_result(None)


def length(chance: random.Random, median: float) -> int:
    return max(2, min(300, round(median * math.exp(chance.gauss(0.0, 0.7)))))


async def alternating(act: Act, chance: random.Random) -> None:
    for _ in range(TURNS):
        for policy in "ab":
            await act(policy, length(chance, 24))


async def parallel(act: Act, chance: random.Random) -> None:
    for _ in range(TURNS):
        await asyncio.gather(*[act(policy, length(chance, 24)) for policy in "ab"])


async def unequal(act: Act, chance: random.Random) -> None:
    """Run a session in which the policies alternate, and the replies of `b` are an eighth as long as those of `a`."""
    for _ in range(TURNS):
        await act("a", length(chance, 40))
        await act("b", length(chance, 5))


async def roll_out(way: str, engines: Sequence[Engine], work: Workload, sessions: int, rows: int) -> int:
    """Run the sessions and return how often the engines changed."""
    of_policy = {"a": engines[0], "b": engines[0 if way == "alone" else 1]}
    changes = 0

    async def change(old: str, new: str) -> None:
        nonlocal changes
        changes += 1

    slices = TimeSlices("a", change)

    async def act(policy: str, tokens: int) -> None:
        if way != "phases":
            await of_policy[policy].generate(tokens)
            return
        await slices.enter(policy)
        await of_policy[policy].generate(tokens)
        await slices.leave()

    for engine in engines:
        engine.attach(rows // 2 if way == "together" else rows)
    await asyncio.gather(*[work(act, random.Random(number)) for number in range(sessions)])
    for engine in engines:
        engine.detach()
    return changes


def measured(way: str, engines: Sequence[Engine], work: Workload, sessions: int, rows: int) -> tuple[float, int]:
    before = sum(engine.seconds() for engine in engines)
    changes = asyncio.run(roll_out(way, engines, work, sessions, rows))
    return sum(engine.seconds() for engine in engines) - before, changes


def compare(engines: Sequence[Engine], work: Workload, sessions: int, rows: int, repeats: int) -> None:
    together, phases, changes = [], [], 0
    for _ in range(repeats):
        alone, _ = measured("alone", engines, work, sessions, rows)
        together.append(measured("together", engines, work, sessions, rows)[0] / alone)
        seconds, changes = measured("phases", engines, work, sessions, rows)
        phases.append(seconds / alone)
    gain = (statistics.median(together) - statistics.median(phases)) / changes
    memory = "enough" if rows >= 2 * sessions else "a quarter"
    sys.stdout.write(
        f"{work.__name__:12} {memory:10} {shown(together)}  {shown(phases)}  {changes:2} changes  {gain:7.1%}\n"
    )
    sys.stdout.flush()


def shown(ratios: Sequence[float]) -> str:
    return f"{statistics.median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--sessions", type=int, default=64)
    parser.add_argument("--parameters", type=int, nargs="+", default=[100_000, 3_000_000])
    options = parser.parse_args()
    sessions = options.sessions
    core = max(os.sched_getaffinity(0))
    disable_progress_bar()
    for parameters in options.parameters:
        with tempfile.TemporaryDirectory() as folder:
            path = str(tiny_model(folder, parameters=parameters))
            engines = [Engine(path, core) for _ in range(2)]
            for engine in engines:
                engine.seconds()  # the answer comes when the model is loaded
        sys.stdout.write(
            f"{parameters / 1e6:g}M parameters, {sessions} sessions; 1.00: one engine alone with the same work\n"
            f"{'workflow':12} {'memory':10} {'together':20}  {'phases':20}\n"
        )
        for work in (alternating, parallel, unequal):
            for rows in (2 * sessions, sessions // 4):
                compare(engines, work, sessions, rows, options.repeats)
        for engine in engines:
            engine.stop()


if __name__ == "__main__":
    main()
