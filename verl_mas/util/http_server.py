"""The server of everything that listens, which clients that connect and send nothing cannot stop."""

from __future__ import annotations

import asyncio
import resource
import socket
import time
from typing import TYPE_CHECKING, Any, cast

import uvicorn
from uvicorn.protocols.http.auto import AutoHTTPProtocol

if TYPE_CHECKING:
    from collections.abc import Callable

    from uvicorn.protocols.http.h11_impl import H11Protocol

# A connection without the whole head of a request for so many seconds is closed; uvicorn would keep it.
HEAD_S = 10
# asyncio accepts so many connections before it looks at one, and logs as many errors when descriptors run out.
BACKLOG = 128
# What clients sent on kept connections when the end came is on its way for so long.
ON_ITS_WAY_S = 2.0


class Server(uvicorn.Server):
    """`app`: an ASGI application, or with `factory` a function that makes it. `grace`: the seconds for requests to end
    after SIGTERM, when no others are accepted. `keep_s`: how long a connection may rest between two requests."""

    def __init__(self, app: object, *, factory: bool = False, grace: int = 3, keep_s: float | None = None):
        descriptors, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        # The rest is for engines, files and tools. No limit is -1.
        self._most = max(descriptors // 4, min(descriptors, 4096) - 512) if descriptors > 0 else 4096
        self._silent: dict[tuple[object, object], float] = {}
        self._keep_s = HEAD_S if keep_s is None else keep_s
        config = uvicorn.Config(
            cast(Any, app),
            factory=factory,
            http=cast("type[asyncio.Protocol]", self._connected),
            log_level="warning",
            access_log=False,
            timeout_graceful_shutdown=grace,
            # Longer than most clients keep a connection: they would ask on one that is being closed.
            timeout_keep_alive=int(self._keep_s),
            lifespan="off",
            ws="none",
            backlog=BACKLOG,
            # A server with long rests is that of a run's own sessions, none of which is refused.
            limit_concurrency=self._most if keep_s is None else None,
        )
        super().__init__(config)

    def _connected(self, **state: Any) -> asyncio.Protocol:
        if len(self.server_state.connections) >= self._most:
            self.close_silent(0, 0)
        return cast("Callable[..., asyncio.Protocol]", AutoHTTPProtocol)(**state)

    async def on_tick(self, counter: int) -> bool:
        self.close_silent(HEAD_S, self._keep_s)
        return await super().on_tick(counter)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """uvicorn would at once close a connection that is between two requests, also if the next has been sent."""
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
        """Close connections that are before their first request, or between two, for so many seconds."""
        before, self._silent = self._silent, {}
        for connection in cast("set[H11Protocol]", self.server_state.connections):
            cycle = connection.cycle
            if cycle is None or cycle.response_complete:
                since = self._silent[connection, cycle] = before.get((connection, cycle), time.monotonic())
                if time.monotonic() - since >= (head_s if cycle is None else keep_s):
                    connection.transport.close()
