"""The HTTP server of all commands and gateways. Clients that connect and send nothing cannot block it."""

import asyncio
import resource
import socket
import time
from typing import TYPE_CHECKING, cast

import uvicorn
from uvicorn.protocols.http.auto import AutoHTTPProtocol

if TYPE_CHECKING:
    from collections.abc import Callable

    from uvicorn.protocols.http.h11_impl import H11Protocol

# A connection is closed if it has not sent the complete head of a request after this many seconds. uvicorn would
# keep such a connection open.
HEAD_S = 10
# Number of connections that asyncio accepts before it handles any of them. If file descriptors run out, asyncio logs
# an error for each of these connections.
BACKLOG = 128
# Seconds after the start of a shutdown in which requests on keep-alive connections may still arrive.
ON_ITS_WAY_S = 2.0


class Server(uvicorn.Server):
    """An HTTP server. `app`: an ASGI application or, with `factory`, a function that makes it. `grace`: seconds in
    which running requests can end after SIGTERM, while no new requests are accepted. `keep_s`: seconds for which a
    connection may stay idle between two requests."""

    def __init__(self, app: object, *, factory: bool = False, grace: int = 3, keep_s: float | None = None):
        descriptors, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        # Connections get a part of the process's file descriptors; the rest is for engines, files and tools. A limit
        # of -1 means no limit.
        self._most = max(descriptors // 4, min(descriptors, 4096) - 512) if descriptors > 0 else 4096
        self._silent: dict[tuple[object, object], float] = {}
        self._keep_s = HEAD_S if keep_s is None else keep_s
        config = uvicorn.Config(
            cast("Callable[..., object]", app),
            factory=factory,
            http=cast("type[asyncio.Protocol]", self._connected),
            log_level="warning",
            access_log=False,
            timeout_graceful_shutdown=grace,
            # Most clients close an idle connection earlier than this. If the server closed it first, a client could
            # send a request on a connection that is being closed.
            timeout_keep_alive=int(self._keep_s),
            lifespan="off",
            ws="none",
            backlog=BACKLOG,
            # A server with its own `keep_s` serves the sessions of a run, so it must not refuse any connection.
            limit_concurrency=self._most if keep_s is None else None,
        )
        super().__init__(config)

    def _connected(self, **state: object) -> asyncio.Protocol:
        if len(self.server_state.connections) >= self._most:
            self.close_silent(0, 0)
        return cast("Callable[..., asyncio.Protocol]", AutoHTTPProtocol)(**state)

    async def on_tick(self, counter: int) -> bool:
        self.close_silent(HEAD_S, self._keep_s)
        return await super().on_tick(counter)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Shut down after a short wait for requests that clients have already sent. Without this wait, uvicorn would
        immediately close every connection that is between two requests."""
        for server in self.servers:
            server.close()
        end = time.monotonic() + ON_ITS_WAY_S
        while self.server_state.connections and time.monotonic() < end and not self.force_exit:
            for connection in cast("set[H11Protocol]", self.server_state.connections):
                if connection.cycle is not None:
                    connection.cycle.keep_alive = False
            await asyncio.sleep(0.02)
        await super().shutdown(sockets)

    def close_silent(self, head_s: float, keep_s: float) -> None:
        """Close connections that have waited `head_s` seconds for their first request, or `keep_s` seconds for their
        next request."""
        before, self._silent = self._silent, {}
        for connection in cast("set[H11Protocol]", self.server_state.connections):
            cycle = connection.cycle
            if cycle is None or cycle.response_complete:
                since = self._silent[connection, cycle] = before.get((connection, cycle), time.monotonic())
                if time.monotonic() - since >= (head_s if cycle is None else keep_s):
                    connection.transport.close()
