"""A team of two agents that knows an address, a key and the names of its models, and no package."""

import asyncio
import contextlib
import json
import os
import signal
import socket
import sys
import time
import types
from typing import Any
from urllib.request import Request, urlopen

HERE = __file__
LEFT_OPEN: list[socket.socket] = []


def ask(gateway: Any, model: str, messages: list[Any]) -> Any:
    """The reply of an agent, as a message."""
    headers = {"Authorization": f"Bearer {gateway.api_key}", "Content-Type": "application/json"}
    body = json.dumps({"model": model, "messages": messages}).encode()
    with urlopen(Request(f"{gateway.base_url}/chat/completions", body, headers), timeout=30) as reply:
        return json.load(reply)["choices"][0]["message"]


def pair(task: Any, gateway: Any) -> Any:
    """The writer replies twice in one conversation. The copier reads the second reply, and its own reply is the team's
    answer."""
    history = list(task.messages)
    for _ in range(2):
        reply = ask(gateway, "writer", history)
        history += [reply, {"role": "user", "content": task.question}]
    return ask(gateway, "copier", [{"role": "user", "content": f"{task.question} {reply['content']}"}])["content"]


async def apart(task: Any, gateway: Any) -> Any:
    return pair(task, gateway)


def say() -> None:
    """Ask the writer once, as a process that has the variables of a command."""
    place = types.SimpleNamespace(base_url=os.environ["OPENAI_BASE_URL"], api_key=os.environ["OPENAI_API_KEY"])
    ask(place, "writer", [{"role": "user", "content": "q"}])


def endless(task: Any, gateway: Any) -> None:
    ask(gateway, "writer", task.messages)
    time.sleep(60)


def chatty(task: Any, gateway: Any) -> str:
    """Wait until the output of this process is closed."""
    os.write(2, b"x" * (65 << 20))
    while os.fstat(2).st_size > 1000:
        time.sleep(0.05)
    ask(gateway, "writer", task.messages)
    return "cut"


def verbose(task: Any, gateway: Any) -> str:
    ask(gateway, "writer", task.messages)
    return "x" * (2 << 20)


async def blocking(task: Any, gateway: Any) -> None:
    endless(task, gateway)


def leaves(task: Any, gateway: Any) -> None:
    sys.exit(3)


def dies(task: Any, gateway: Any) -> None:
    print("last words", flush=True)  # noqa: T201
    os._exit(3)


def killed(task: Any, gateway: Any) -> None:
    ask(gateway, "writer", task.messages)
    os.kill(os.getpid(), signal.SIGKILL)


def babbles(task: Any, gateway: Any) -> None:
    """Write into every pipe of the process, including the pipe for outcomes, and do not end."""
    for descriptor in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):
            if os.readlink(f"/proc/self/fd/{descriptor}").startswith("pipe"):
                os.write(int(descriptor), b'{"session": \n')
    time.sleep(60)


def forks(task: Any, gateway: Any) -> Any:
    """Fork, and return in both processes."""
    os.fork()
    return pair(task, gateway)


async def forks_in_the_loop(task: Any, gateway: Any) -> Any:
    os.fork()
    await asyncio.sleep(0.1)
    return pair(task, gateway)


async def forks_and_returns(task: Any, gateway: Any) -> Any:
    os.fork()
    return "c"


def leaks(task: Any, gateway: Any) -> Any:
    """Open connections and never close them."""
    host, port = gateway.base_url.split("/")[2].split(":")
    LEFT_OPEN.extend(socket.create_connection((host, int(port))) for _ in range(20))
    return pair(task, gateway)


if __name__ == "__main__":
    row = json.load(sys.stdin)
    assert json.loads(os.environ["VERL_MAS_TASK"]) == row
    place = types.SimpleNamespace(base_url=os.environ["OPENAI_BASE_URL"], api_key=os.environ["OPENAI_API_KEY"])
    print("what is printed is no outcome")  # noqa: T201
    answer = globals()[sys.argv[1]](types.SimpleNamespace(**row), place)
    os.write(int(os.environ["VERL_MAS_OUTCOME_FD"]), json.dumps({"answer": answer, "reward": 0.5}).encode())
