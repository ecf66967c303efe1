"""A small MCP server on standard input and output, good or bad: python mcp_server.py <kind>

It uses the standard library alone, as the package mcp takes a second to import.
"""

import json
import os
import signal
import subprocess
import sys
import time
from typing import Any

ECHO = {
    "name": "echo",
    "description": "Repeat a text.",
    "inputSchema": {"type": "object", "properties": {"text": {"type": "string"}}, "required": ["text"]},
}
SLEEPER = [sys.executable, "-I", "-S", "-c", "import time; time.sleep(600)"]


def send(message: dict[str, object]) -> None:
    sys.stdout.write(json.dumps({"jsonrpc": "2.0", **message}) + "\n")
    sys.stdout.flush()


def answer(kind: str, request: dict[str, Any]) -> None:
    number = request["id"]
    if request["method"] == "initialize":
        version = request["params"]["protocolVersion"]
        info = {"name": kind, "version": "1"}
        send({"id": number, "result": {"protocolVersion": version, "capabilities": {"tools": {}}, "serverInfo": info}})
    elif request["method"] == "tools/list":
        if kind != "hangs" or not called:
            send({"id": number, "result": {"tools": [ECHO] if kind != "twins" else [ECHO, ECHO]}})
    elif request["method"] == "tools/call":
        called.append(number)
        call(kind, number, request["params"]["arguments"].get("text"))
    else:
        send({"id": number, "error": {"code": -32601, "message": "no such method"}})


called: list[int] = []


def call(kind: str, number: int, text: object) -> None:
    if kind == "dies" or text == "die":
        os._exit(3)
    if text == "binary":
        os.write(1, b"\xff\xfe\x00 binary\n")
    if kind == "hangs" or text in ("wait", "binary"):
        return
    if text == "environment":
        text = json.dumps(dict(os.environ))
    elif text == "pids":
        text = json.dumps([os.getpid(), *pids])
    content: object = [{"type": "text", "text": "x" * 10_000_000 if kind == "big" else text}]
    if kind == "nonsense":
        content = "nonsense"
    elif kind == "image":
        content = [{"type": "image", "data": "AAAA", "mimeType": "image/png"}]
    send({"id": number, "result": {"content": content, "isError": kind == "error"}})


pids: list[int] = []


def main(kind: str) -> None:
    if kind == "crashes":
        sys.exit("no licence")
    if kind == "deaf":
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        # A process in the server's group, a process that left the group, and a process that left the group and lost its
        # parent.
        pids.append(subprocess.Popen(SLEEPER).pid)
        pids.append(subprocess.Popen(SLEEPER, start_new_session=True).pid)
        orphan = f"import subprocess; print(subprocess.Popen({SLEEPER!r}, stdout=2, start_new_session=True).pid)"
        pids.append(int(subprocess.check_output([sys.executable, "-I", "-S", "-c", orphan])))
    if kind == "slow":
        time.sleep(0.5)
    if kind == "mute":
        time.sleep(600)
    if kind == "chatty":
        os.write(1, b"Welcome!\n\xff\xfe\x00\n")
    os.write(2, b"ready\n")
    for line in sys.stdin:
        request = json.loads(line)
        if "id" in request:
            answer(kind, request)
    while kind == "deaf":
        time.sleep(1)


if __name__ == "__main__":
    main(sys.argv[1])
