"""Build a search index and serve it over HTTP, as Search-R1's retriever does."""

from __future__ import annotations

import argparse
import contextlib
import sys
from dataclasses import asdict
from functools import partial
from pathlib import Path

from verl_mas.cli._arguments import add_address, add_json, listening, url_of
from verl_mas.cli._output import show
from verl_mas.cli._parser import Parser
from verl_mas.environment.retrieval.corpus import read_corpus
from verl_mas.environment.retrieval.index import build, open_index, read_meta
from verl_mas.util.text import printable

PASSAGES = 3  # passages that `query` prints


def main(argv: list[str]) -> int:
    options = parser().parse_args(argv)
    return int(options.run(options))


def parser() -> Parser:
    command = Parser("verl-mas retriever", __doc__)
    commands = command.add_subparsers(metavar="ACTION", required=True)

    about = "index a corpus into a folder"
    building = commands.add_parser("build", help=about, description=about)
    formats = "passages: .jsonl, .jsonl.gz or .parquet"
    building.add_argument("--corpus", type=Path, required=True, metavar="FILE", help=formats)
    building.add_argument("--index", type=Path, required=True, metavar="DIR", help="the folder to write")
    dense = "search dense vectors of this model, e.g. intfloat/e5-base-v2; default: BM25"
    building.add_argument("--encoder", metavar="MODEL", help=dense)
    add_json(building)
    building.set_defaults(run=_build)

    about = "serve an index over HTTP: POST /retrieve"
    serving = commands.add_parser("serve", help=about, description=about)
    _add_index(serving)
    add_address(serving, port=8000)
    serving.set_defaults(run=_serve)

    about = "search an index once"
    asking = commands.add_parser("query", help=about, description=about)
    _add_index(asking)
    asking.add_argument("query", metavar="QUERY", help="the words to search for")
    add_json(asking)
    asking.set_defaults(run=_query)
    return command


def _add_index(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--index", type=Path, required=True, metavar="DIR", help="a folder that `build` wrote")


def _build(options: argparse.Namespace) -> int:
    index = build(read_corpus(options.corpus), options.index, encoder=options.encoder, progress=True)
    built = {"index": str(options.index), "passages": len(index)}
    show(options, built, f"{len(index)} passages in {options.index}\n")
    return 0


def _serve(options: argparse.Namespace) -> int:
    from fastapi import FastAPI

    from verl_mas.environment.retrieval.server import create_app
    from verl_mas.util.http_server import Server

    read_meta(options.index)  # refuse a folder without an index before the server starts
    failures: list[BaseException] = []

    def failed(error: BaseException) -> None:
        failures.append(error)
        server.should_exit = True

    # The server creates the app only when it runs. So `failed`, which stops the server, is never called before the
    # server exists.
    def app() -> FastAPI:
        return create_app(partial(open_index, options.index), failed=failed)

    server = Server(app, factory=True)
    with listening(options.host, options.port) as listens, contextlib.suppress(KeyboardInterrupt):
        sys.stdout.write(f"{url_of(listens)}/retrieve\n")
        sys.stdout.flush()
        server.run(sockets=[listens])
    if failures:
        raise failures[0]
    return 0


def _query(options: argparse.Namespace) -> int:
    hits = open_index(options.index).search([options.query], PASSAGES)[0]
    lines = [f"{hit.score:8.3f}  {hit.id}  {hit.title}\n          {hit.text[:200]}\n" for hit in hits]
    show(options, {"hits": [asdict(hit) for hit in hits]}, printable("".join(lines)))
    return 0
