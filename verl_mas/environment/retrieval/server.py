"""Serves an index over HTTP, with the requests and responses of Search-R1's `/retrieve`."""

from collections.abc import Callable, Mapping

from fastapi import FastAPI, HTTPException, Request
from fastapi.concurrency import run_in_threadpool
from fastapi.responses import JSONResponse
from pydantic import BaseModel, Field, ValidationError

from verl_mas.environment.retrieval.corpus import Passage
from verl_mas.environment.retrieval.index import MAX_TOPK, Index
from verl_mas.util.bodies import TooLong, whole
from verl_mas.util.threads import begun

# Search-R1's client sends the queries of all active rollouts in one request: 512 tasks with 5 rollouts send 2,560.
MAX_QUERIES = 16_384
# Maximum number of passages in a response. Without this limit, a request could take minutes and hundreds of megabytes.
MAX_PASSAGES = 200_000
MAX_BODY_BYTES = 8_000_000
# Longer queries are cut to this number of characters; see docs/write/search.md.
MAX_CHARS = 4096
LOADING = "the index is not loaded yet; /ready answers 200 when it is"


class Query(BaseModel):
    queries: list[str] = Field(max_length=MAX_QUERIES)
    topk: int | None = Field(default=None, ge=1, le=MAX_TOPK)
    return_scores: bool = False


def create_app(
    load: Callable[[], Index], topk: int = 3, failed: Callable[[BaseException], None] = lambda error: None
) -> FastAPI:
    """Make the application. `load` runs in the background. Until it returns, `/health` answers 200, and `/ready` and
    `/retrieve` answer 503.

    If `load` fails, `/ready` and `/retrieve` answer 503 with the error, which is also passed to `failed`.
    """
    app = FastAPI(title="verl-mas retriever")
    loading = begun(load, "index")
    loading.add_done_callback(lambda ended: failed(error) if (error := ended.exception()) else None)

    def problem() -> str | None:
        error = loading.exception() if loading.done() else None
        return f"{type(error).__name__}: {error}" if error else None

    @app.get("/health")
    async def health() -> dict[str, str]:
        return {"status": "alive"}

    @app.get("/ready")
    async def ready() -> JSONResponse:
        if not loading.done() or problem():
            return JSONResponse({"status": "not ready", "error": problem()}, status_code=503)
        return JSONResponse({"status": "ready", "passages": len(loading.result()), "topk": topk})

    @app.post("/retrieve")
    async def retrieve(request: Request) -> JSONResponse:
        try:
            query = read(await whole(request.stream(), MAX_BODY_BYTES))
        except TooLong as error:
            raise HTTPException(413, str(error)) from error
        k = query.topk or topk
        if len(query.queries) * k > MAX_PASSAGES:
            raise HTTPException(422, f"{len(query.queries)} queries x topk {k} is more than {MAX_PASSAGES:,} passages")
        if not loading.done() or problem():
            return JSONResponse({"detail": problem() or LOADING}, status_code=503)
        results = await run_in_threadpool(loading.result().search, [text[:MAX_CHARS] for text in query.queries], k)
        return JSONResponse({"result": [[_item(hit, query.return_scores) for hit in hits] for hits in results]})

    return app


def read(body: bytes) -> Query:
    """Parse the query in a body. pydantic reads the JSON, because it refuses half of a surrogate pair. Python's own
    reader accepts such a half, but no response could contain it."""
    try:
        return Query.model_validate_json(body)
    except ValidationError as error:
        # Leave out the input, which may be megabytes long, or contain characters that JSON cannot hold.
        raise HTTPException(422, error.errors(include_input=False, include_url=False, include_context=False)) from error


def _item(hit: Passage, with_score: bool) -> Mapping[str, object]:
    return {"document": hit.document(), "score": hit.score} if with_score else hit.document()
