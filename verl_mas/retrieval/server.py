"""An index over HTTP, with the request and response of Search-R1's `/retrieve`."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from fastapi import FastAPI
from fastapi.concurrency import run_in_threadpool
from fastapi.responses import JSONResponse
from pydantic import BaseModel, Field

from verl_mas.retrieval.corpus import Passage
from verl_mas.retrieval.index import Index

# Search-R1's client sends the queries of all its active rollouts in one request: 512 tasks of 5 are 2,560.
MAX_QUERIES, MAX_TOPK = 16_384, 100
# A query is read as far as this; see docs/search.md.
MAX_CHARS = 4096
LOADING = "the index is still being loaded or built; /ready answers 200 when it can serve"


class Query(BaseModel):
    queries: list[str] = Field(max_length=MAX_QUERIES)
    topk: int | None = Field(default=None, ge=1, le=MAX_TOPK)
    return_scores: bool = False


def create_app(
    load: Callable[[], Index], topk: int = 3, failed: Callable[[Exception], None] = lambda error: None
) -> FastAPI:
    """`load` runs in the background: until it is done, `/health` answers and `/ready` and `/retrieve` say 503.

    If it fails they go on saying so, with the error, which is also handed to `failed`.
    """
    app = FastAPI(title="verl-mas retriever")
    state: dict[str, Any] = {"index": None, "error": None}

    def prepare() -> None:
        try:
            state["index"] = load()
        except Exception as error:  # the boundary: whatever stopped the index is what /ready has to say
            state["error"] = f"{type(error).__name__}: {error}"
            failed(error)

    threading.Thread(target=prepare, daemon=True).start()

    @app.get("/health")
    async def health() -> dict[str, str]:
        return {"status": "alive"}

    @app.get("/ready")
    async def ready() -> JSONResponse:
        if state["index"] is None:
            return JSONResponse({"status": "not ready", "error": state["error"]}, status_code=503)
        return JSONResponse({"status": "ready", "passages": len(state["index"]), "topk": topk})

    @app.post("/retrieve")
    async def retrieve(query: Query) -> JSONResponse:
        index = state["index"]
        if index is None:
            return JSONResponse({"detail": state["error"] or LOADING}, status_code=503)
        queries = [text[:MAX_CHARS] for text in query.queries]
        found = await run_in_threadpool(index.search, queries, query.topk or topk)
        return JSONResponse({"result": [[_item(hit, query.return_scores) for hit in hits] for hits in found]})

    return app


def _item(hit: Passage, with_score: bool) -> dict[str, Any]:
    return {"document": hit.document(), "score": hit.score} if with_score else hit.document()
