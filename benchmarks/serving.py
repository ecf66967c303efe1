"""Measure `verl-mas serve` under load: `python benchmarks/serving.py DIR --clients 200 --minutes 10`.

DIR is the folder of an exported team. Each client asks one question after the other. It requests one answer in four as
a stream, and cancels one question in fifty after 50 ms. The script prints the seconds from a question to its whole
answer, the server's memory and file descriptors in the second and in the last tenth of the time, and the lost
questions, which got neither an answer nor a status. At the end the script sends SIGTERM while all clients ask; the
server should still answer all questions that it has received.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import signal
import ssl
import subprocess
import sys
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

import httpx
import psutil
from verl.utils.net_utils import get_free_port

SHARE_OF_STREAMS, SHARE_OF_IMPATIENT = 0.25, 0.02


@dataclass
class Load:
    url: str
    rng: random.Random = field(default_factory=lambda: random.Random(0))
    seconds: list[float] = field(default_factory=list)
    outcomes: Counter[str] = field(default_factory=Counter)
    terminated: bool = False
    ended: bool = False

    async def client(self, tls: ssl.SSLContext) -> None:
        """Ask questions over a separate connection. If hundreds of clients share a pool, httpx opens needless ones."""
        async with httpx.AsyncClient(timeout=300, verify=tls) as http:
            await self._questions(http)

    async def _questions(self, http: httpx.AsyncClient) -> None:
        while not self.ended:
            impatient = self.rng.random() < SHARE_OF_IMPATIENT
            start, refusable = time.monotonic(), self.terminated
            try:
                outcome = await asyncio.wait_for(self._ask(http), 0.05 if impatient else None)
            except (TimeoutError, asyncio.TimeoutError):
                outcome = "not waited for"
            except httpx.HTTPError as error:
                outcome = f"{'refused after' if refusable else 'lost before'} SIGTERM: {type(error).__name__}"
            else:
                self.seconds.append(time.monotonic() - start)
            self.outcomes[outcome] += 1

    async def _ask(self, http: httpx.AsyncClient) -> str:
        stream = self.rng.random() < SHARE_OF_STREAMS
        question = f"What is {self.rng.randrange(100)} + {self.rng.randrange(100)}?"
        body = {"model": "team", "messages": [{"role": "user", "content": question}]}
        reply = await http.post(f"{self.url}/v1/chat/completions", json={**body, "stream": stream})
        if stream and reply.status_code == 200 and not reply.text.rstrip().endswith("[DONE]"):
            return "lost: half a stream"
        return str(reply.status_code)


async def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("dir", type=Path)
    parser.add_argument("--clients", type=int, default=200)
    parser.add_argument("--minutes", type=float, default=10)
    options = parser.parse_args()
    port, _ = get_free_port("127.0.0.1")
    command = ["-m", "verl_mas", "serve", str(options.dir), "--port", str(port), "--name", "team"]
    server = subprocess.Popen([sys.executable, *command, "--engine", "threads=1"], stdout=subprocess.PIPE)
    assert server.stdout is not None
    server.stdout.readline()
    process, seconds = psutil.Process(server.pid), 60 * options.minutes
    load = Load(f"http://127.0.0.1:{port}")
    used: list[tuple[int, int]] = []
    tls = ssl.create_default_context()
    clients = [asyncio.create_task(load.client(tls)) for _ in range(options.clients)]
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        await asyncio.sleep(seconds / 50)
        used.append((process.memory_info().rss >> 20, process.num_fds()))
    load.terminated = True
    server.send_signal(signal.SIGTERM)
    await asyncio.sleep(1)
    load.ended = True
    await asyncio.gather(*clients)
    rc = await asyncio.to_thread(server.wait, 90)
    load.seconds.sort()
    middle, most = (load.seconds[int(share * (len(load.seconds) - 1))] for share in (0.5, 0.99))
    first, last = used[5:10], used[-5:]
    sys.stdout.write(
        f"{len(load.seconds)} answers in {seconds:g} s to {options.clients} at once: median {middle:.2f} s, "
        f"p99 {most:.2f} s, longest {load.seconds[-1]:.2f} s\n"
        f"outcomes: {dict(load.outcomes)}\n"
        f"memory, MB: {max(m for m, _ in first)} at first, {max(m for m, _ in last)} at the end; "
        f"descriptors: {max(f for _, f in first)} at first, {max(f for _, f in last)} at the end\n"
        f"after SIGTERM it ended with {rc}\n"
    )


if __name__ == "__main__":
    asyncio.run(main())
