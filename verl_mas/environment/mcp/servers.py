"""MCP servers as a source of tools. Each server is started once per process, and ends when the process ends, even if
the process is killed.

The servers have their own thread and event loop, because the event loops of sessions may begin and end.
"""

from __future__ import annotations

import asyncio
import atexit
import importlib.util
import json
import logging
import math
import os
import re
import shutil
import sys
from collections.abc import Awaitable, Iterable, Iterator, Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, TextIO, TypeVar

from verl_mas.config.mcp import McpSpec
from verl_mas.environment.mcp import guard as mcp_guard
from verl_mas.errors import ConfigError, EngineLost, ForeignError, foreign, raise_all
from verl_mas.util.loop_thread import LoopThread
from verl_mas.workflow.codecs import JsonObject
from verl_mas.workflow.tools import CallContext, Tool

if TYPE_CHECKING:
    from mcp import Client
    from mcp import types as mcp_types
    from mcp.client import Transport

# How often a lost server is started again. If the server is lost again before it has answered a call, further calls
# raise EngineLost. An answered call resets the count.
RESTARTS = 1
PROBE_S = 5.0  # timeout of the health check after a failed call; then the server counts as lost
# Seconds in which a server ends: mcp waits 2 s after closing its input, 2 s after SIGTERM, and 2 s after SIGKILL.
STOP_S = 8.0
PAGES = 100  # most pages in a list of tools, which a server could continue endlessly
TAIL = 500  # number of last characters of a server's log that errors and warnings quote
logger = logging.getLogger(__name__)
T = TypeVar("T")


class McpError(Exception):
    """A tool call that failed. The model gets the text of the error as the result of the call."""


def tool_name(server: str, tool: str) -> str:
    """Name a tool `<server>_<tool>`, in the characters and the length that endpoints accept."""
    return re.sub(r"[^A-Za-z0-9_-]", "_", f"{server}_{tool}")[:64]


class McpServers:
    """The servers of `mas.mcp` in this process, and their `tools`. As a context manager it starts and stops them.

    All sessions of the process share each server and the state of that server. A server's standard error is appended
    to `<log_folder>/<server>-<process id>.log`.
    """

    def __init__(self, specs: Mapping[str, McpSpec], log_folder: str | Path | None = None):
        # Without a log folder, the logs are in a temporary folder, because error messages quote the logs. This folder
        # is deleted when the servers stop.
        self._temporary = (
            None if log_folder or not specs else TemporaryDirectory(prefix="verl-mas-mcp-", ignore_cleanup_errors=True)
        )
        folder = Path(log_folder or (self._temporary.name if self._temporary else ""))
        self._servers = [_McpServer(name, spec, folder / f"{name}-{os.getpid()}.log") for name, spec in specs.items()]
        self._loop: LoopThread | None = None
        self.tools: list[Tool] = []

    def __enter__(self) -> McpServers:
        return self.start()

    def __exit__(self, *raised: object) -> None:
        self.stop()

    def start(self) -> McpServers:
        """Start all servers at the same time; raises a ConfigError for each one that does not start."""
        raise_all(error for server in self._servers for error in server.missing())
        if not self._servers or self._loop is not None:
            return self
        # Silence this logger, which logs a traceback if a line that a server writes is not a message of the protocol.
        logging.getLogger("mcp.client.stdio").setLevel(logging.CRITICAL)
        self._loop = LoopThread("mcp")
        atexit.register(self.stop)
        listings = self._loop.result(_all(server.listed() for server in self._servers))
        for server, listed in zip(self._servers, listings, strict=True):
            if not isinstance(listed, ConfigError):
                self.tools += [self._tool(server, tool) for tool in listed]
        errors = [error for error in listings if isinstance(error, ConfigError)]
        if errors:
            self.stop()
        raise_all(errors)
        return self

    def stop(self) -> None:
        """End every server; calls that are running fail."""
        loop, self._loop = self._loop, None
        if loop is not None:
            atexit.unregister(self.stop)
            loop.result(_all(server.stopped() for server in self._servers))
            loop.close()
        if self._temporary:
            self._temporary.cleanup()

    def _tool(self, server: _McpServer, listed: mcp_types.Tool) -> Tool:
        async def call(arguments: JsonObject, context: CallContext) -> object:
            if self._loop is None:
                raise McpError("the MCP servers are stopped")
            return await self._loop.aresult(server.call(listed.name, arguments))

        function = {
            "name": tool_name(server.name, listed.name),
            "description": listed.description or "",
            "parameters": listed.input_schema,
        }
        return Tool({"type": "function", "function": function}, call)


async def _all(work: Iterable[Awaitable[T]]) -> list[T]:
    return list(await asyncio.gather(*work))


class _McpServer:
    """One configured server. Its methods run in the event loop of the servers."""

    def __init__(self, name: str, spec: McpSpec, log: Path):
        self.name, self.spec, self.log = name, spec, log
        self._connection: _Connection | None = None
        self._ending: set[asyncio.Task[None]] = set()
        self._lost = 0  # connections lost since the last answer to a call
        self._warned = False

    def missing(self) -> Iterator[ConfigError]:
        """Yield an error for each requirement of the server that this machine does not meet."""
        if importlib.util.find_spec("mcp") is None:
            value = f"mas.mcp.{self.name}, and the package mcp is not installed"
            rule = "MCP servers are used through their official client package"
            yield ConfigError(value, rule=rule, fix='pip install "verl-mas[mcp]"')
        elif self.spec.command and shutil.which(self.spec.command[0]) is None:
            value = f"{self}: {self.spec.command[0]} is not a program of this machine"
            rule = "an MCP server is started on every node with agent-loop workers"
            yield ConfigError(value, rule=rule, fix="install it, or give its whole path")
        for variable in self.spec.pass_env:
            if variable not in os.environ:
                value = f"mas.mcp.{self.name}.pass_env has {variable}, which is not set"
                rule = "the server gets these variables of the run's environment"
                yield ConfigError(value, rule=rule, fix=f"export {variable}=..., or remove it from the list")

    async def listed(self) -> list[mcp_types.Tool] | ConfigError:
        try:
            return (await self._connected()).tools
        except EngineLost as error:
            value = str(error)
            rule = f"an MCP server starts and lists its tools within {self.spec.start_timeout_s:g} s"
            return ConfigError(value, rule=rule, fix=f"start it by hand, or raise mas.mcp.{self.name}.start_timeout_s")

    async def call(self, tool: str, arguments: JsonObject) -> str:
        """Call a tool and return the result as text. Raises McpError if the call failed, and EngineLost if the server
        cannot be used."""
        connection = await self._connected()
        try:
            with foreign():
                result = await connection.client.call_tool(tool, arguments)
        except asyncio.CancelledError:
            # The call may have taken too long, so check the server.
            self._look_after(connection)
            raise
        except ForeignError as failed:
            await asyncio.shield(self._look_after(connection))
            raise McpError(_why(failed.error)) from failed.error
        self._lost = 0
        if result.is_error:
            raise McpError(_text(result))
        return _text(result)

    async def stopped(self) -> None:
        if self._connection is not None:
            self._end(self._connection)
        await asyncio.gather(*self._ending)

    async def noticed(self, message: object) -> None:
        """Handle a notification of the server, or a line that is not a message."""
        if isinstance(message, Exception) and not self._warned:
            self._warned = True
            logger.warning(
                "MCP server %s wrote a line to its standard output that is not a message of the protocol: %s",
                *(self.name, _why(message)),
            )

    async def _connected(self) -> _Connection:
        if self._connection is None:
            if self._lost > RESTARTS:
                raise EngineLost(f"{self}: it was lost {self._lost} times without an answer{_tail(self.log)}")
            self._connection = _Connection(self)
        connection = self._connection
        try:
            # Shield the start from a cancellation of this call, because other calls may wait for the same start.
            await asyncio.shield(connection.ready)
        except EngineLost:
            await connection.end()
            raise
        return connection

    def _look_after(self, connection: _Connection) -> asyncio.Task[None]:
        """Start a health check. If the server does not answer, its connection ends and the next call starts the server
        again."""
        if connection.probe is None or connection.probe.done():
            connection.probe = asyncio.create_task(self._probe(connection))
        return connection.probe

    async def _probe(self, connection: _Connection) -> None:
        if connection is not self._connection or await connection.answers():
            return
        self._connection = None
        self._lost += 1
        logger.warning("MCP server %s is lost%s", self.name, _tail(self.log))
        self._end(connection)

    def _end(self, connection: _Connection) -> None:
        task = asyncio.create_task(connection.end())
        self._ending.add(task)
        task.add_done_callback(self._ending.discard)

    def __str__(self) -> str:
        spec = self.spec
        return f"mas.mcp.{self.name}.{f'command={spec.command}' if spec.url is None else f'url={spec.url}'}"


class _Connection:
    """The connection of one start of a server. `client` and `tools` are set when `ready` is done."""

    client: Client
    tools: list[mcp_types.Tool]

    def __init__(self, server: _McpServer):
        self.ready: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.probe: asyncio.Task[None] | None = None
        self._stop = asyncio.Event()
        self._owner = asyncio.create_task(self._own(server))

    async def _own(self, server: _McpServer) -> None:
        try:
            with foreign():
                await self._serve(server)
        except ForeignError as failed:
            if not self.ready.done():
                why = _why(failed.error, server.spec.start_timeout_s)
                self.ready.set_exception(EngineLost(f"{server}: {why}{_tail(server.log)}"))
            else:
                logger.warning("MCP server %s ended with an error: %s", server.name, _why(failed.error))

    async def _serve(self, server: _McpServer) -> None:
        """Own the connection in one task, because anyio's scopes must be exited by the task that entered them."""
        import anyio
        from mcp import Client

        server.log.parent.mkdir(parents=True, exist_ok=True)
        with server.log.open("a", errors="replace") as log, anyio.fail_after(server.spec.start_timeout_s) as limit:
            transport = _transport(server.spec, log)
            async with Client(transport, cache=None, message_handler=server.noticed) as self.client:
                self.tools = await _tools(self.client)
                limit.deadline = math.inf
                self.ready.set_result(None)
                await self._stop.wait()

    async def answers(self) -> bool:
        listing = asyncio.ensure_future(self.client.list_tools())
        await asyncio.wait({listing}, timeout=PROBE_S)
        if not listing.done():
            listing.cancel()
            return False
        return listing.exception() is None

    async def end(self) -> None:
        if not self.ready.done():
            self._owner.cancel()
            self.ready.set_exception(EngineLost("it was stopped while it started"))
        self._stop.set()
        await asyncio.wait({self._owner}, timeout=STOP_S)


def _transport(spec: McpSpec, log: TextIO) -> Transport:
    from mcp import StdioServerParameters
    from mcp.client.stdio import stdio_client
    from mcp.client.streamable_http import streamable_http_client

    if spec.url is not None:
        return streamable_http_client(spec.url)
    # mcp adds HOME, LOGNAME, PATH, SHELL, TERM and USER, and no other variable.
    environment = {name: os.environ[name] for name in spec.pass_env} | spec.env
    guarded = ["-I", "-S", mcp_guard.__file__, str(os.getpid()), *spec.command]
    parameters = StdioServerParameters(
        command=sys.executable, args=guarded, env=environment, encoding_error_handler="replace"
    )
    return stdio_client(parameters, log)


async def _tools(client: Client) -> list[mcp_types.Tool]:
    tools: list[mcp_types.Tool] = []
    page = await client.list_tools()
    for _ in range(PAGES):
        tools += page.tools
        if page.next_cursor is None:
            break
        page = await client.list_tools(cursor=page.next_cursor)
    return tools


def _text(result: mcp_types.CallToolResult) -> str:
    parts = [_part(content) for content in result.content]
    if not parts and result.structured_content is not None:
        return json.dumps(result.structured_content, ensure_ascii=False)
    return "\n".join(parts)


def _part(content: object) -> str:
    """Return the text of a part of a result, or the kind of a part that is not text."""
    text = getattr(content, "text", None) or getattr(getattr(content, "resource", None), "text", None)
    if isinstance(text, str):
        return text
    kind = getattr(content, "mime_type", None) or getattr(getattr(content, "resource", None), "mime_type", None)
    return f"[{getattr(content, 'type', 'content')}{f' {kind}' if kind else ''}]"


def _why(error: BaseException, seconds: float | None = None) -> str:
    """Describe the first cause in a group of exceptions."""
    while nested := getattr(error, "exceptions", None):
        error = nested[0]
    if isinstance(error, TimeoutError):
        return "no answer" + ("" if seconds is None else f" within {seconds:g} s")
    return f"{type(error).__name__}: {error}"


def _tail(log: Path) -> str:
    text = log.read_text(errors="replace")[-TAIL:].strip() if log.exists() else ""
    return f"; the end of {log}:\n{text}" if text else ""
