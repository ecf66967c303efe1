"""Measure the contained executor on this machine.

It measures the speed compared with a plain subprocess, the latency, the delay of other programs by a hanging program, a
long mix with hostile programs, and runs whose fork servers are killed at random moments. Ratios are of one run.

python benchmarks/sandbox.py                     # 10,000 mixed programs, 20 kills; three minutes on two cores
python benchmarks/sandbox.py --mixed 500 --kills 3 --seconds 1
"""

from __future__ import annotations

import argparse
import asyncio
import os
import random
import resource
import statistics
import sys
import time
from collections.abc import Awaitable, Callable, Iterable, Sequence, Set
from dataclasses import dataclass

import psutil

from verl_mas.environment.execution.executor import Execution, Executor, Limits, Result, Status

Run = Callable[[str, str], Awaitable[str]]
PRINT = ("print(1)", "")
TWENTY_LINES = (
    """import sys
from collections import deque

def main():
    data = sys.stdin.read().split()
    n, m = int(data[0]), int(data[1])
    edges = [[] for _ in range(n)]
    for k in range(m):
        a, b = int(data[2 + 2 * k]), int(data[3 + 2 * k])
        edges[a].append(b)
        edges[b].append(a)
    distance = {0: 0}
    queue = deque([0])
    while queue:
        node = queue.popleft()
        for other in edges[node]:
            if other not in distance:
                distance[other] = distance[node] + 1
                queue.append(other)
    print(max(distance.values()))

main()
""",
    "200 199\n" + "\n".join(f"{n} {n + 1}" for n in range(199)),
)
TEN_MS = "import time\nend = time.thread_time() + 0.01\nwhile time.thread_time() < end: pass\nprint(1)"
HANGS = "while True: pass"
BRIEF = Limits(cpu_s=0.3, wall_s=1.0, memory_mb=128, output_bytes=4096)
FULL = frozenset({Status.OUT_OF_MEMORY, Status.TIMED_OUT, Status.ERROR})


@dataclass(frozen=True)
class Known:
    """A program and its expected end."""

    program: str
    ends: frozenset[Status]
    stdin: str = ""
    stdout: str | None = None

    @property
    def limits(self) -> Limits:
        """Return the limits. Only programs that must reach them have short limits, so a busy machine ends no others."""
        return BRIEF if Status.TIMED_OUT in self.ends else Limits(memory_mb=128, output_bytes=4096)

    def wrong(self, result: Result) -> str | None:
        if result.status in self.ends and self.stdout in (None, result.stdout):
            return None
        return f"{self.program[:60]!r}: {result.status.name}, {result.stdout[:60]!r}, {result.stderr[-200:]!r}"


def honest(number: int) -> Known:
    """Make each program different, so that results cannot be mixed up."""
    kinds = (
        Known(f"print({number})", frozenset({Status.OK}), stdout=f"{number}\n"),
        Known("print(sum(map(int, input().split())))", frozenset({Status.OK}), f"{number} 1", f"{number + 1}\n"),
        Known(f"import heapq\nprint(heapq.nsmallest(1, [{number}, 10**9]))", frozenset({Status.OK}),
              stdout=f"[{number}]\n"),
        Known(f"raise ValueError({number})", frozenset({Status.ERROR}), stdout=""),
        Known(f"print({number}", frozenset({Status.SYNTAX_ERROR}), stdout=""),
    )  # fmt: skip
    return kinds[number % len(kinds)]


HOSTILE = (
    Known(HANGS, frozenset({Status.TIMED_OUT})),
    Known("import time; time.sleep(60)", frozenset({Status.TIMED_OUT})),
    Known("x = []\nwhile True: x.append(bytes(1 << 20))", FULL),
    Known("while True: print('x' * 999)", frozenset({Status.TOO_MUCH_OUTPUT})),
    Known("import os; os.fork()", frozenset({Status.ERROR})),
    Known("import ctypes; ctypes.string_at(0)", frozenset({Status.KILLED, Status.ERROR})),
    Known("import os\nos.closerange(0, 100)\nos._exit(3)", frozenset({Status.ERROR})),
    Known("import threading, time\nfor _ in range(40): threading.Thread(target=time.sleep, args=(9,)).start()",
          frozenset({Status.TIMED_OUT})),
    Known("(" * 50_000, frozenset({Status.SYNTAX_ERROR})),
    Known("import sys; sys.exit('x' * 100_000)", frozenset({Status.ERROR, Status.TOO_MUCH_OUTPUT})),
)  # fmt: skip


def mixture(count: int, hostile: float, rng: random.Random) -> list[Known]:
    return [rng.choice(HOSTILE) if rng.random() < hostile else honest(number) for number in range(count)]


async def run_all(executor: Executor, programs: Iterable[Known], in_flight: int = 32) -> list[Result]:
    """Run the programs, `in_flight` of them at a time, as concurrent sessions would."""
    places = asyncio.Semaphore(in_flight)

    async def one(known: Known) -> Result:
        async with places:
            return await executor.execute(known.program, known.stdin, known.limits)

    return await asyncio.gather(*map(one, programs))


def wrong_verdicts(programs: Sequence[Known], results: Sequence[Result]) -> list[str]:
    return [text for known, result in zip(programs, results, strict=True) if (text := known.wrong(result))]


async def subprocess(program: str, stdin: str) -> str:
    """Run a program in a new interpreter without any limit. This is the baseline."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-I", "-S", "-c", program, stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE
    )
    out, _ = await process.communicate(stdin.encode())
    return out.decode()


@dataclass(frozen=True)
class Rate:
    """Programs per second, and CPU milliseconds per program of the caller and of all processes."""

    per_second: float
    own_ms: float
    all_ms: float

    def __str__(self) -> str:
        return (
            f"{self.per_second:.0f} per second, CPU {self.all_ms:.1f} ms each, {self.own_ms:.2f} ms of it the caller's"
        )


async def rate(run: Run, program: tuple[str, str], at_once: int, seconds: float) -> Rate:
    end = time.perf_counter() + seconds
    done = 0

    async def one_after_another() -> None:
        nonlocal done
        while time.perf_counter() < end:
            await run(*program)
            done += 1

    await run(*program)
    started, (own, total) = time.perf_counter(), cpu_seconds()
    await asyncio.gather(*(one_after_another() for _ in range(at_once)))
    own_after, total_after = cpu_seconds()
    each = 1000 / done
    return Rate(done / (time.perf_counter() - started), (own_after - own) * each, (total_after - total) * each)


def cpu_seconds() -> tuple[float, float]:
    """Return the CPU seconds of this process, and its CPU seconds plus those of all its child processes."""
    own, ended = (sum(resource.getrusage(who)[:2]) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return own, own + ended + sum(sum(child.cpu_times()[:4]) for child in psutil.Process().children(recursive=True))


async def latency(executor: Executor, in_flight: int, count: int) -> tuple[list[float], list[float]]:
    """Return the milliseconds of each program, and of each call, which also waits for a free slot."""
    places = asyncio.Semaphore(in_flight)
    running: list[float] = []
    waited: list[float] = []

    async def one() -> None:
        async with places:
            started = time.perf_counter()
            result = await executor.execute(TEN_MS)
            waited.append(1000 * (time.perf_counter() - started))
            running.append(1000 * result.seconds)

    await asyncio.gather(*(one() for _ in range(count)))
    return running, waited


def quantiles(values: list[float]) -> str:
    cuts = statistics.quantiles(values, n=100)
    return f"p50 {cuts[49]:.1f} ms, p99 {cuts[98]:.1f} ms"


async def hanging(executor: Executor, slots: int, count: int) -> tuple[float, float, float]:
    """Measure many short programs alone, and together with a program that hangs.

    Return the seconds of the short programs in both cases, and the seconds of the program that hangs.
    """
    short = [Known(*PRINT[:1], frozenset({Status.OK}), stdout="1\n")] * count
    started = time.perf_counter()
    await run_all(executor, short, 2 * slots)
    alone = time.perf_counter() - started
    started = time.perf_counter()
    hangs = asyncio.create_task(executor.execute(HANGS, limits=Limits(cpu_s=0.5)))
    results = await run_all(executor, short, 2 * slots)
    beside = time.perf_counter() - started
    assert all(result.ok for result in results)
    return alone, beside, (await hangs).seconds


@dataclass(frozen=True)
class Held:
    """The resources that this process and its children hold."""

    descriptors: int
    processes: int
    own_mb: float
    servers_mb: float

    @classmethod
    def now(cls) -> Held:
        own = psutil.Process()
        children = own.children(recursive=True)
        return cls(
            len(os.listdir("/proc/self/fd")),
            len(children),
            own.memory_info().rss / 2**20,
            sum(child.memory_info().rss for child in children) / 2**20,
        )

    def __str__(self) -> str:
        return (
            f"{self.descriptors} descriptors, {self.processes} processes, {self.own_mb:.0f} MB here, "
            f"{self.servers_mb:.0f} MB in fork servers"
        )


async def kill_servers(
    executor: Executor, kills: int, rng: random.Random, spared: Set[psutil.Process]
) -> tuple[int, list[str]]:
    """Run programs while the fork servers are killed at random moments. Return their number and the wrong verdicts.

    The fork servers are the children of this process, except the children in `spared`.
    """
    programs: list[Known] = []
    results: list[Result] = []
    killed = asyncio.Event()

    async def client() -> None:
        while not killed.is_set():
            known = honest(rng.randrange(10**6))
            result = await executor.execute(known.program, known.stdin, known.limits)
            programs.append(known)
            results.append(result)

    clients = [asyncio.create_task(client()) for _ in range(8)]
    for kill in range(kills):
        done = len(results)
        # Every second kill may hit a server that is still starting. Before the next kill, all running programs must
        # end, because a program that loses its server three times ends with an error and has no verdict.
        while kill % 2 and len(results) < done + 16:
            await asyncio.sleep(0.01)
        await asyncio.sleep(rng.uniform(0.05, 0.6))
        for server in set(psutil.Process().children()) - spared:
            server.kill()
    killed.set()
    await asyncio.gather(*clients)
    return len(results), wrong_verdicts(programs, results)


async def measure(settings: Execution, seconds: float, mixed: int, kills: int, seed: int) -> int:
    started = time.perf_counter()
    others = set(psutil.Process().children())
    executor = settings.open()

    async def contained(program: str, stdin: str) -> str:
        return (await executor.execute(program, stdin)).stdout

    await contained(*PRINT)
    print(f"start: {time.perf_counter() - started:.2f} s; {os.cpu_count()} cores, {settings.slots} slots")
    for name, program in (("print(1)", PRINT), ("20 lines with input", TWENTY_LINES)):
        ours = await rate(contained, program, 2 * settings.slots, seconds)
        plain = await rate(subprocess, program, settings.slots, seconds)
        faster = ours.per_second / plain.per_second, plain.all_ms / ours.all_ms
        print(f"{name}: {ours}")
        print(f"  python -I -S: {plain}; so {faster[0]:.1f} times as many, with 1/{faster[1]:.1f} of the CPU")
    for in_flight in (settings.slots, 64):
        running, waited = await latency(executor, in_flight, 400)
        print(f"a 10 ms program, {in_flight} in flight: {quantiles(running)}; with waiting {quantiles(waited)}")
    alone, beside, limit = await hanging(executor, settings.slots, 300)
    print(f"300 programs: {alone:.2f} s alone, {beside:.2f} s beside one that hangs and ends after {limit:.2f} s")
    wrong = await mix(executor, mixed, random.Random(seed))
    count, changed = await kill_servers(executor, kills, random.Random(seed), others)
    print(f"{kills} kills of the fork servers: {count} programs, {len(changed)} wrong verdicts")
    await executor.aclose()
    print(f"at the end: {len(psutil.Process().children(recursive=True))} processes left")
    print("\n".join([*wrong, *changed]))
    return bool(wrong or changed)


async def mix(executor: Executor, count: int, rng: random.Random) -> list[str]:
    programs = mixture(count, 0.05, rng)
    # The first tenth warms up. Resources that still grow after it grow with the number of programs.
    wrong = wrong_verdicts(programs[: count // 10], await run_all(executor, programs[: count // 10]))
    before = Held.now()
    started = time.perf_counter()
    rest = programs[count // 10 :]
    wrong += wrong_verdicts(rest, await run_all(executor, rest))
    speed = len(rest) / (time.perf_counter() - started)
    print(f"{count} mixed programs, 5 % hostile: {speed:.0f} per second, {len(wrong)} wrong verdicts")
    print(f"  after the first tenth: {before}\n  after the last:        {Held.now()}")
    return wrong


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--slots", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=5.0, help="of each rate")
    parser.add_argument("--mixed", type=int, default=10_000)
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    settings = Execution(slots=given.slots)
    return asyncio.run(measure(settings, given.seconds, given.mixed, given.kills, given.seed))


if __name__ == "__main__":
    sys.exit(main())
