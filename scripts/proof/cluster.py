"""Run a Ray cluster that a training run joins, or an OpenAI-compatible endpoint that a training run calls."""

from __future__ import annotations

import json
import shutil
import socket
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from proof.stage import Program, Proof, end

CPUS = 32


@contextmanager
def ray_head(proof: Proof) -> Iterator[dict[str, str]]:
    """Start a cluster with `ray start --head`, and yield the environment variables with which a run finds it.

    The run gets no address. It finds the cluster as it would on a machine that has only this cluster.
    """
    # Ray's sockets need a short path.
    folder = tempfile.mkdtemp(prefix="ray-", dir="/tmp")
    env = {"RAY_TMPDIR": folder}
    port = str(_free_port())
    command = [
        *(sys.executable, "-m", "ray.scripts.scripts", "start", "--head", "--block"),
        *(f"--port={port}", f"--num-cpus={CPUS}", "--include-dashboard=false"),
        *(["--num-gpus=1"] if proof.cpu else []),
    ]
    with (proof.folder / "ray.log").open("w") as log:
        head = proof.start(Program("ray", command, env), log)
        try:
            while not (Path(folder) / "ray" / "ray_current_cluster").exists() and proof.left and head.poll() is None:
                time.sleep(0.2)
            proof.check("a cluster runs before the run", head.poll() is None)
            yield env
        finally:
            end(head)
            shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def endpoint() -> Iterator[tuple[str, list[str]]]:
    """Serve an endpoint. Yield its URL, and the list of requested models, which grows with each request."""
    asked: list[str] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            asked.append(body["model"])
            # The answers differ, so that sessions of a task have different rewards.
            message = {"role": "assistant", "content": "abcd"[len(asked) % 4] * 4}
            choices = [{"index": i, "message": message, "finish_reason": "stop"} for i in range(body.get("n") or 1)]
            reply = {"id": "1", "object": "chat.completion", "model": body["model"], "choices": choices}
            data = json.dumps(reply).encode()
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, *args: object) -> None: ...

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/v1", asked
    finally:
        server.shutdown()


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
