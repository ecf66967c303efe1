"""Build a search index and serve it over HTTP, as Search-R1's retriever does."""

from __future__ import annotations

import argparse
import contextlib
import sys
from pathlib import Path

from verl_mas.errors import ConfigError
from verl_mas.retrieval.corpus import read_corpus
from verl_mas.retrieval.index import META, Index, build, open_index, read_meta
from verl_mas.text import visible


def main(argv: list[str]) -> int:
    options = _parser().parse_args(argv)
    return int(options.run(options))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="verl-mas retriever", description=__doc__)
    commands = parser.add_subparsers(required=True)

    building = commands.add_parser("build", help="index a corpus into a folder")
    building.add_argument("--corpus", type=Path, required=True, help=".jsonl, .jsonl.gz or .parquet")
    building.add_argument("--index", type=Path, required=True, help="the folder to write")
    _add_encoder(building)
    building.set_defaults(run=_build)

    serving = commands.add_parser("serve", help="answer POST /retrieve")
    serving.add_argument("--index", type=Path, required=True, help="a folder that `build` wrote")
    serving.add_argument("--corpus", type=Path, help="build the index from this file if the folder has none")
    _add_encoder(serving)
    serving.add_argument("--host", default="127.0.0.1")
    serving.add_argument("--port", type=int, default=8000)
    serving.add_argument("--topk", type=_topk, default=3, help="passages for requests without topk")
    serving.set_defaults(run=_serve)

    asking = commands.add_parser("query", help="search an index once")
    asking.add_argument("--index", type=Path, required=True)
    asking.add_argument("--topk", type=_topk, default=3)
    asking.add_argument("query")
    asking.set_defaults(run=_query)
    return parser


def _topk(text: str) -> int:
    if (topk := int(text)) < 1:
        raise argparse.ArgumentTypeError(f"{topk} is not at least 1")
    return topk


def _add_encoder(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--encoder", help="search dense vectors of this model, e.g. intfloat/e5-base-v2; default: BM25")


def _build(options: argparse.Namespace) -> int:
    index = build(read_corpus(options.corpus), options.index, encoder=options.encoder, progress=True)
    sys.stdout.write(f"{len(index)} passages in {options.index}\n")
    return 0


def _serve(options: argparse.Namespace) -> int:
    import uvicorn
    from fastapi import FastAPI

    from verl_mas.retrieval.server import create_app

    _check(options)
    failures: list[Exception] = []

    def failed(error: Exception) -> None:
        failures.append(error)
        server.should_exit = True

    # The server makes the app when it runs, so loading cannot fail before the server exists that `failed` stops.
    def app() -> FastAPI:
        return create_app(lambda: _opened(options), options.topk, failed)

    server = uvicorn.Server(
        uvicorn.Config(app, factory=True, host=options.host, port=options.port, log_level="warning")
    )
    sys.stdout.write(f"http://{options.host}:{options.port}/retrieve\n")
    with contextlib.suppress(KeyboardInterrupt):
        server.run()
    if failures:
        raise failures[0]
    return 0


def _check(options: argparse.Namespace) -> None:
    """Refuse wrong arguments before the server starts."""
    finished = (options.index / META).exists()
    if finished and options.encoder is not None:
        raise ConfigError(
            f"--encoder {options.encoder} with a finished index",
            rule="an index keeps the encoder that it was built with",
            fix="leave --encoder out, or build another index",
        )
    if finished or options.corpus is None:
        read_meta(options.index)
    else:
        next(read_corpus(options.corpus), None)


def _opened(options: argparse.Namespace) -> Index:
    if (options.index / META).exists():
        return open_index(options.index)
    return build(read_corpus(options.corpus), options.index, encoder=options.encoder, progress=True)


def _query(options: argparse.Namespace) -> int:
    for hit in open_index(options.index).search([options.query], options.topk)[0]:
        sys.stdout.write(visible(f"{hit.score:8.3f}  {hit.id}  {hit.title}\n          {hit.text[:200]}\n"))
    return 0
