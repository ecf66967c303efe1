"""The HTTP endpoint of a rollout worker. Each event loop has one server, which runs as long as a session of the loop
runs a program."""

import asyncio
import hashlib
import re
import socket
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import replace

from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.types import Receive, Scope, Send

from verl_mas.errors import EngineLost, FaultKind, SessionFault
from verl_mas.gateway.dialect import DIALECTS, ApiError, Dialect, Fields, Served
from verl_mas.gateway.session import Exchange, GatewaySession
from verl_mas.util.bodies import TooLong, while_connected, whole
from verl_mas.util.http_server import Server
from verl_mas.util.loops import PerLoop
from verl_mas.workflow.codecs import JsonObject

LOOPBACK = "127.0.0.1"
MAX_BODY = 16 << 20
# Idle connections stay open until the last session ends. If the server closed a connection while a client sends a
# request, the client would send the request twice.
IDLE_S = 3600
CHARACTERS_OF_A_TOKEN = 4  # an estimate; Anthropic's own count is an estimate, too
BODY_S = 60.0  # timeout for the whole body of a request
LAST_S = 1.0  # how long `close` waits for the last replies to be sent
MODELS, COUNT = "/v1/models", "/v1/messages/count_tokens"
# A path may begin with an agent, and Azure's clients add a deployment. Some clients add no /v1, and some add it twice.
ADDRESS = re.compile(r"(?:/agents/([^/]+))?(?:/openai)?(?:/v1)*(?:/deployments/([^/]+))?(/.*?)?/*")
STATUS = {
    FaultKind.TIMEOUT: (504, "timeout"),
    FaultKind.LIMIT: (400, "context_length_exceeded"),
    FaultKind.REFUSED: (502, "refused"),
}


@asynccontextmanager
async def served(session: GatewaySession) -> AsyncIterator[str]:
    """Serve the requests of the session within the context, and yield the address of the server."""
    server = _SERVERS.here()
    address = await server.open(session)
    try:
        yield address
    finally:
        await server.close(session)


class GatewayServer:
    """Answers the requests of all sessions of an event loop. The key of a request identifies its session."""

    def __init__(self) -> None:
        self._sessions: dict[bytes, GatewaySession] = {}
        self._dialects = {DIALECTS[name].path: DIALECTS[name] for name in DIALECTS}
        self._starting = asyncio.Lock()
        self._server: Server | None = None
        self._host = ""

    async def open(self, session: GatewaySession) -> str:
        async with self._starting:
            self._sessions[_digest(session.key)] = session
            if self._server is None:
                await self._start()
        return f"http://{self._host}"

    async def close(self, session: GatewaySession) -> None:
        await session.close()
        async with self._starting:
            del self._sessions[_digest(session.key)]
            if not self._sessions and self._server is not None:
                server, self._server = self._server, None
                self._ticking.cancel()
                for listening in server.servers:
                    listening.close()
                for connection in list(server.server_state.connections):
                    connection.shutdown()
                if answering := set(server.server_state.tasks):
                    await asyncio.wait(answering, timeout=LAST_S)

    async def _start(self) -> None:
        listens = socket.create_server((LOOPBACK, 0))
        self._host = f"{LOOPBACK}:{listens.getsockname()[1]}"
        self._server = Server(self, keep_s=IDLE_S)
        self._server.config.load()
        # Call `startup` instead of `run`, because the worker owns the signal handlers and the event loop.
        self._server.lifespan = self._server.config.lifespan_class(self._server.config)
        await self._server.startup(sockets=[listens])
        # uvicorn's `main_loop` calls `on_tick` regularly, which closes idle connections.
        self._ticking = asyncio.create_task(self._server.main_loop())

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = Request(scope, receive)
        try:
            await self._answer(request, send)
        except ApiError as problem:
            # Anthropic's clients also read `type`, in addition to the fields that OpenAI's clients read.
            error = {"type": "error", **problem.body}
            await JSONResponse(error, problem.status, problem.headers)(scope, receive, send)
        except ClientDisconnect:
            pass

    async def _answer(self, request: Request, send: Send) -> None:
        host = request.headers.get("host")
        if host != self._host:
            # Guard against DNS rebinding: a foreign domain may resolve to this address, and a browser would then treat
            # its pages as same-origin with this server.
            raise ApiError(403, f"Host: {host!r:.80} is not {self._host}")
        session = self._session_of(request.headers)
        session.reached.set()
        address = ADDRESS.fullmatch(request.scope["path"])
        agent, deployment, rest = address.groups("") if address else ("", "", "")
        dialect = self._dialects.get(f"/v1{rest}")
        if dialect is not None and request.method == "POST":
            await self._post(request, dialect, agent, deployment, session, send)
        else:
            reply = JSONResponse(await self._about(request, f"/v1{rest}", session))
            await reply(request.scope, request.receive, send)

    async def _about(self, request: Request, path: str, session: GatewaySession) -> JsonObject:
        """Return the reply to a request that does not start an act, such as a list of models."""
        if request.method == "GET" and path == MODELS:
            return {"object": "list", "data": [_model(name) for name in session.agents]}
        if request.method == "GET" and path.startswith(f"{MODELS}/"):
            name = path.removeprefix(f"{MODELS}/")
            session.agent_of(name)
            return _model(name)
        if request.method == "POST" and path == COUNT:
            return {"input_tokens": len(await read_body(request)) // CHARACTERS_OF_A_TOKEN}
        paths = ", ".join([*self._dialects, MODELS])
        instead = f"agents have {paths}; give a client of another model its own base URL"
        raise ApiError(404, f"{request.method} {path}: {instead}")

    def _session_of(self, headers: Mapping[str, str]) -> GatewaySession:
        session = self._sessions.get(_digest(key_of(headers)))
        if session is None or session.over:
            message = "the key is not that of a session that runs: each has its own in OPENAI_API_KEY and the like"
            raise ApiError(401, message, code="invalid_api_key")
        return session

    async def _post(
        self, request: Request, dialect: Dialect, agent: str, deployment: str, session: GatewaySession, send: Send
    ) -> None:
        try:
            body = await read_body(request)
            fields = Fields.of(body, session.items)
            if agent or deployment:
                fields.left.setdefault("model", agent or deployment)
            asked = replace(dialect.read(fields), agent=agent)
        except ApiError as problem:
            if not problem.unsupported:
                session.decide(problem)
            raise
        again = request.headers.get("x-stainless-retry-count", "0") != "0"
        digest = hashlib.blake2b(request.url.path.encode() + b"\n" + body, digest_size=16).digest()
        with session.exchange(asked, digest, again=again) as exchange:
            reply = await _reply(request, exchange)
            body_of_reply = dialect.whole(asked, reply)
            session.items.update((item["id"], item) for item in body_of_reply.get("output", ()))
            # A stream is made from the complete reply, so that an interrupted stream does not leave half an act.
            events = "".join(dialect.events(asked, reply)) if asked.stream else None
            response = JSONResponse(body_of_reply) if events is None else _stream(events)
            await response(request.scope, request.receive, send)
            exchange.delivered = True


def key_of(headers: Mapping[str, str]) -> str:
    """Return the API key of a request. Clients send it in different headers."""
    scheme, _, bearer = headers.get("authorization", "").partition(" ")
    other = headers.get("x-api-key") or headers.get("api-key", "")
    return bearer.strip() if scheme.lower() == "bearer" else other


async def read_body(request: Request) -> bytes:
    try:
        return await asyncio.wait_for(whole(request.stream(), MAX_BODY), BODY_S)
    except TooLong as error:
        raise ApiError(413, f"{error}: the limit of a request") from error
    except asyncio.TimeoutError as error:
        raise ApiError(408, f"the body was not complete after {BODY_S:g} s") from error


async def _reply(request: Request, exchange: Exchange) -> Served:
    """Wait for the reply as long as the client is connected. If the client disconnects, the act continues for
    `grace_s`, so that the client can send its request again."""
    try:
        return await while_connected(request, asyncio.shield(exchange.act))
    except asyncio.CancelledError:
        if not exchange.act.cancelled():
            raise
        raise ApiError(401, "the session is over", code="session_over") from None
    except EngineLost as error:
        raise ApiError(503, "an engine is lost; the log of the run says why", code="engine_lost") from error
    except SessionFault as error:
        # Send only one line, because programs must not get tracebacks.
        status, code = STATUS.get(error.kind, (500, error.kind.value))
        raise ApiError(status, error.line, code=code) from error


def _model(name: str) -> JsonObject:
    return {"id": name, "object": "model", "created": 0, "owned_by": "verl-mas"}


def _stream(events: str) -> Response:
    return Response(events, media_type="text/event-stream", headers={"Cache-Control": "no-cache"})


def _digest(key: str) -> bytes:
    return hashlib.sha256(key.encode("utf-8", "surrogateescape")).digest()


_SERVERS = PerLoop(GatewayServer)
