"""A server that answers as a test wants: like an endpoint of models, or with any status and body."""

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

# Maps a request to the text or the message of the reply, or to the status of an HTTP error with or without its body.
Answer = Callable[[dict[str, Any]], str | dict[str, Any] | int | tuple[int, str | bytes]]


class Endpoint(ThreadingHTTPServer):
    """A server that answers requests with `answer(body)`. A number is the status of an HTTP error.

    `path`: the only path that it serves; None: all paths.
    """

    daemon_threads = True

    def __init__(self, answer: Answer, path: str | None = None):
        super().__init__(("127.0.0.1", 0), Handler)
        self.answer, self.path = answer, path
        self.bodies: list[dict[str, Any]] = []
        self.headers: list[dict[str, str]] = []

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}/v1"


class Handler(BaseHTTPRequestHandler):
    server: Endpoint

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.server.bodies.append(body)
        self.server.headers.append(dict(self.headers))
        answer = self.server.answer(body) if self.server.path in (None, self.path) else 404
        status, text = answer if isinstance(answer, tuple) else self._completion(answer)
        data = text.encode() if isinstance(text, str) else text
        with suppress(ConnectionError):  # the client may not wait for the answer
            self.send_response(status)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

    @staticmethod
    def _completion(answer: str | dict[str, Any] | int) -> tuple[int, str]:
        status, reply = (answer, "no") if isinstance(answer, int) else (200, answer)
        message = reply if isinstance(reply, dict) else {"content": reply}
        choice = {"message": {"role": "assistant", **message}, "finish_reason": "stop"}
        return status, json.dumps({"choices": [choice], "usage": {"prompt_tokens": 5, "completion_tokens": 3}})

    def log_message(self, *args: object) -> None:
        pass


@contextmanager
def serving(answer: Answer, path: str | None = None) -> Iterator[Endpoint]:
    endpoint = Endpoint(answer, path)
    threading.Thread(target=endpoint.serve_forever, args=(0.01,), daemon=True).start()
    try:
        yield endpoint
    finally:
        endpoint.shutdown()
        endpoint.server_close()
