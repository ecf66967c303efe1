"""An OpenAI-compatible server whose models are the team and each policy of the team."""

import asyncio
import hmac
import logging
import time
from collections.abc import AsyncGenerator, Iterator
from contextlib import aclosing, contextmanager
from dataclasses import replace
from urllib.parse import urlsplit

from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse, Response, StreamingResponse
from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, Gauge, Histogram, generate_latest
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from verl_mas.errors import EngineLost, InvalidInput, SessionFault, failures
from verl_mas.gateway.dialect import ApiError, event
from verl_mas.gateway.server import key_of, read_body
from verl_mas.gateway.streaming import ActText, Listener, Listening
from verl_mas.results.serve.protocol import Answers, ChatRequest, ReplyWriter, read_request, refusal
from verl_mas.results.serve.runtime import Runtime, checked_sampling
from verl_mas.util.bodies import while_connected
from verl_mas.util.text import is_loopback
from verl_mas.workflow import client
from verl_mas.workflow.agents import ResolvedAgent
from verl_mas.workflow.base import resolve
from verl_mas.workflow.task import Task

logger = logging.getLogger(__name__)
MAX_SESSIONS = 256
CHAT = "/v1/chat/completions"
ALIVE_S = 10.0  # seconds without text after which a stream sends an SSE comment, so that no proxy closes it


class TeamServer:
    """Answers requests by running sessions. `key` is the API key that requests must have; None if they need no key."""

    def __init__(
        self, runtime: Runtime, *, name: str | None = None, key: str | None = None, max_sessions: int = MAX_SESSIONS
    ):
        self.runtime, self.name = runtime, name or runtime.name
        self._key, self._most, self._running = key, max_sessions, 0
        self._started, self._lost = int(time.time()), False
        self._measured = CollectorRegistry()
        sessions = Gauge("verl_mas_sessions", "Sessions that run", registry=self._measured)
        sessions.set_function(lambda: self._running)
        self._seconds = Histogram(
            "verl_mas_request_seconds",
            f"Seconds from a request to {CHAT} until its answer was sent. Status 499: the client disconnected",
            ["status"],
            registry=self._measured,
            buckets=(0.1, 0.3, 1, 3, 10, 30, 100, 300),
        )

    @property
    def models(self) -> list[str]:
        return [self.name, *(f"{self.name}/{policy}" for policy in self.runtime.clients)]

    def app(self) -> FastAPI:
        app = FastAPI(title=f"{self.name}, a team served by verl-mas", docs_url=None, redoc_url=None, openapi_url=None)
        app.add_api_route("/health", self.health, methods=["GET"])
        app.add_api_route("/metrics", self.metrics, methods=["GET"])
        app.add_api_route("/v1/models", self.list_models, methods=["GET"])
        app.add_api_route(CHAT, self.chat, methods=["POST"], response_model=None)
        app.add_middleware(_Timed, seconds=self._seconds)
        for kind in (ApiError, HTTPException, ClientDisconnect):
            app.add_exception_handler(kind, _refused)
        return app

    async def health(self) -> JSONResponse:
        # The reply does not say why an engine is lost: the reason may contain file paths, and this route needs no key.
        found = {"status": "an engine is lost" if self._lost else "ok", "model": self.name, "sessions": self._running}
        return JSONResponse(found, 503 if self._lost else 200)

    async def metrics(self, request: Request) -> Response:
        """Return the metrics in the format of Prometheus."""
        self._authorise(request)
        return Response(generate_latest(self._measured), media_type=CONTENT_TYPE_LATEST)

    async def list_models(self, request: Request) -> JSONResponse:
        self._authorise(request)
        about = {"object": "model", "created": self._started, "owned_by": "verl-mas"}
        return JSONResponse({"object": "list", "data": [{"id": name, **about} for name in self.models]})

    async def chat(self, request: Request) -> Response:
        self._authorise(request)
        if request.headers.get("content-type", "").partition(";")[0].strip().lower() != "application/json":
            raise ApiError(415, "the body is not declared as JSON: Content-Type: application/json")
        asked = read_request(await read_body(request), self.name, list(self.runtime.clients))
        if self._running >= self._most:
            raise ApiError(429, f"{self._running} sessions are running, which is the limit; try again", code="busy")
        if asked.stream:
            return await self._stream(request, asked)
        with self._counted():
            found = await while_connected(request, self._answers(asked))
        return JSONResponse(ReplyWriter(asked).whole(found))

    async def _stream(self, request: Request, asked: ChatRequest) -> Response:
        chunks = self._chunks(asked)
        # Wait for the first chunk, so that an error before it still becomes an HTTP status.
        first = await while_connected(request, anext(chunks))

        async def all_chunks() -> AsyncGenerator[str, None]:
            async with aclosing(chunks):
                yield first
                try:
                    async for chunk in chunks:
                        yield chunk
                except ApiError as problem:
                    yield event(problem.body)

        return StreamingResponse(all_chunks(), media_type="text/event-stream", headers={"Cache-Control": "no-cache"})

    async def _chunks(self, asked: ChatRequest) -> AsyncGenerator[str, None]:
        """Yield the server-sent events of a reply. Closing the generator, for example because the client disconnected,
        cancels the session."""
        writer, sent_text, streamed = ReplyWriter(asked), "", resolve(self.runtime.mas.workflow).answered_by
        if asked.policy is not None:
            streamed = self._alone_on(asked.policy).name if asked.n == 1 else None
        elif streamed is not None and self.runtime.agents[streamed].spec.tools:
            streamed = None
        texts: asyncio.Queue[ActText | None] = asyncio.Queue()
        with self._counted():
            answers = asyncio.ensure_future(self._answers(asked, texts.put_nowait))
            answers.add_done_callback(lambda _: texts.put_nowait(None))
            try:
                while True:
                    try:
                        text = await asyncio.wait_for(texts.get(), ALIVE_S)
                    except asyncio.TimeoutError:
                        yield ": still working\n\n"
                        continue
                    if text is None:
                        break
                    if asked.extension.transcript:
                        yield writer.act(text)
                    if text.agent == streamed and text.text:
                        delta = {"content": text.text} if sent_text else _opening(text.text)
                        sent_text += text.text
                        yield writer.piece(delta)
                found = answers.result()
                if not found.answers[0].text.startswith(sent_text):
                    raise ApiError(500, "the session was tried again after a part of the answer was sent")
                for number, answer in enumerate(found.answers):
                    # Send only the part of the first answer that has not been streamed yet.
                    before = sent_text if number == 0 else ""
                    rest = answer.text[len(before) :]
                    yield writer.piece({"content": rest} if before else _opening(rest), index=number)
                    yield writer.piece({}, index=number, finish_reason=answer.finish_reason)
                yield writer.end(found)
            finally:
                answers.cancel()
                await asyncio.gather(answers, return_exceptions=True)

    def _alone_on(self, policy: str) -> ResolvedAgent:
        """Return the first agent that acts on a policy. Its settings apply when a client requests the policy without
        the team."""
        return next(agent for agent in self.runtime.agents.values() if agent.spec.policy == policy)

    async def _answers(self, asked: ChatRequest, listener: Listener | None = None) -> Answers:
        """Run a session of the team, or generate with a single policy if the request names one, and return the answers.
        Errors of the request, an engine or an endpoint become ApiErrors."""
        try:
            if asked.policy is not None:
                return Answers.of_policy(await self._alone(asked, asked.policy, listener))
            extension = asked.extension
            task = Task(asked.messages, ground_truth=extension.ground_truth, extra_info=extension.extra_info)
            ended = await self.runtime.session(task, listener=listener, sampling=asked.sampling)
            return Answers.of_session(ended, asked)
        except (EngineLost, InvalidInput, SessionFault) as error:
            if isinstance(error, EngineLost) and not self._lost:
                self._lost = True
                logger.error("%s", error)
            raise refusal(error, self.runtime) from error

    async def _alone(self, asked: ChatRequest, policy: str, listener: Listener | None) -> list[client.Generation]:
        """Generate replies of one policy to the unchanged messages of a request."""
        agent = self._alone_on(policy)
        task = replace(self.runtime.numbered(Task(asked.messages)), validate=True)
        request = client.Request(
            agent=agent.name,
            session=task.key,
            turn=0,
            messages=asked.messages,
            sampling=agent.sampling(task, checked_sampling(asked.sampling, "request")),
            validate=True,
            chat_template_kwargs=agent.spec.chat_template_kwargs,
            max_prompt_length=agent.spec.max_prompt_length,
        )
        own = Listening(listener).clients({policy: self.runtime.clients[policy]})[policy]
        with failures(agent=agent.name, turn=0):
            return await asyncio.wait_for(own.generate(request, asked.n), self.runtime.file.faults.act_timeout_s)

    @contextmanager
    def _counted(self) -> Iterator[None]:
        self._running += 1
        try:
            yield
        finally:
            self._running -= 1

    def _authorise(self, request: Request) -> None:
        """Raise ApiError for requests of foreign web pages in a browser on this machine, and for requests without the
        key."""
        host, origin = request.headers.get("host", ""), request.headers.get("origin")
        if origin is not None and origin.partition("//")[2] != host:
            raise ApiError(403, f"a page of {origin} asks, and not one of this server")
        if self._key is None:
            # Guard against DNS rebinding: a foreign domain may resolve to this address, and a browser would then treat
            # its pages as same-origin with this server.
            if is_loopback((request.scope.get("server") or ("",))[0]) and not is_loopback(_name(host)):
                raise ApiError(403, f"Host: {host} is not a name of this machine; ask localhost, or serve with a key")
            return
        if not hmac.compare_digest(key_of(request.headers).encode(), self._key.encode()):
            raise ApiError(401, "the request has no valid key: Authorization: Bearer KEY", code="invalid_api_key")


class _Timed:
    """Middleware that measures the seconds of chat requests by HTTP status."""

    def __init__(self, app: ASGIApp, seconds: Histogram):
        self._app, self._seconds = app, seconds

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope.get("path") != CHAT:
            return await self._app(scope, receive, send)
        start, status = time.monotonic(), 500

        async def sent(message: Message) -> None:
            nonlocal status
            status = message.get("status", status)
            await send(message)

        try:
            await self._app(scope, receive, sent)
        finally:
            self._seconds.labels(status).observe(time.monotonic() - start)


def _opening(text: str) -> dict[str, object]:
    return {"role": "assistant", "content": text}


def _name(host: str) -> str | None:
    """Return the host name in a Host header; None if the header has no valid name."""
    try:
        return urlsplit(f"//{host}").hostname
    except ValueError:
        return None


async def _refused(request: Request, error: Exception) -> JSONResponse:
    if isinstance(error, HTTPException):
        paths = f"{CHAT}, /v1/models, /health, /metrics"
        message = f"{request.method} {request.url.path}: {error.detail}; there are {paths}"
        error = ApiError(error.status_code, message)
    if isinstance(error, ClientDisconnect):
        error = ApiError(499, "the client closed the connection")
    assert isinstance(error, ApiError)
    return JSONResponse(error.body, error.status, {"Retry-After": "1"} if error.status == 429 else {})
