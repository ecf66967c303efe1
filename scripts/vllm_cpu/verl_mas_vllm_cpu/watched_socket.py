"""A socket that stops waiting when its peer has ended."""

from __future__ import annotations

from concurrent.futures import Future

import zmq

from verl_mas.errors import EngineLost

POLL_MS = 500


class WatchedSocket:
    """The part of a zmq socket that verl's weight sender uses.

    The future `peer` is done when the other side has returned or failed. If it failed, its error is raised here. If
    `peer` is None, the socket watches nothing.
    """

    def __init__(self, socket: zmq.Socket[bytes], peer: Future[None] | None, poll_ms: int = POLL_MS):
        self._socket, self._peer, self._poll_ms = socket, peer, poll_ms

    def send_pyobj(self, message: object) -> None:
        self._wait(zmq.POLLOUT)
        self._socket.send_pyobj(message)

    def recv(self) -> bytes:
        self._wait(zmq.POLLIN)
        return self._socket.recv()

    def close(self) -> None:
        # Messages that a dead peer has not received must not delay this process's exit.
        self._socket.close(linger=0)

    def _wait(self, event: int) -> None:
        while not self._socket.poll(self._poll_ms, event):
            if self._peer is None or not self._peer.done():
                continue
            self._peer.result()
            # The peer returned without an error, so its last message has arrived or will never arrive.
            if not self._socket.poll(self._poll_ms, event):
                raise EngineLost("the engine returned before it had taken all weights")
