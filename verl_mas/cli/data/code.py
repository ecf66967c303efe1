"""The data set `code`."""

from __future__ import annotations

import argparse
import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from importlib.metadata import version
from pathlib import Path

from verl_mas.cli._arguments import add_settings, values
from verl_mas.cli.data._public import Reading, add_arguments
from verl_mas.config.values import load_dataclass
from verl_mas.data import sources
from verl_mas.data.code import JOURNAL, CodeItem, Journal, Preparation, refuse_if_empty
from verl_mas.data.code_golden import Judge, Rules
from verl_mas.data.dataset import DATA_SETS, DataSet, Loader, Prepared
from verl_mas.data.items import first_of_each
from verl_mas.data.sources import PublicSet, RowSource
from verl_mas.execution.executor import Execution
from verl_mas.util import cores
from verl_mas.util.splits import TEST, TRAIN

DEFAULT_TESTS = ("livecodebench_v6", "apps_test", "code_contests_test")
IN_TRAINING = 50  # Tasks per test set for validation during training


@DATA_SETS.register("code")
class Code(DataSet):
    """Programming tasks with hidden tests, public examples and a golden program: public sets, or files of your own.

    Every golden program is run on the tests. The manifest counts what is dropped, and why.
    """

    def arguments(self, parser: argparse.ArgumentParser) -> None:
        train, test = _names(sources.CODE_TRAIN), _names(sources.CODE_TEST)
        about = f"the public sets to test on: {', '.join(test)}; default: {' '.join(DEFAULT_TESTS)}"
        golden = "whether a training task needs a golden program that passes its tests; rewards for a tester that "
        golden += "agrees with it do (default: required)"
        execution = "how golden programs are run: executor, packages, cpu_s, memory_mb, output_bytes, url, slots "
        execution += "(default: one per CPU core); use the settings of the team"
        rules = " ".join(f"{name}={value}" for name, value in asdict(Rules()).items())
        parser.add_argument("--train-set", choices=train, default="apps", help="the public set to train on")
        parser.add_argument("--test-set", nargs="+", choices=test, default=DEFAULT_TESTS, metavar="NAME", help=about)
        add_arguments(parser)
        parser.add_argument("--golden", choices=("required", "optional"), default="required", help=golden)
        add_settings(parser, "--rules", f"what is kept of a task: {rules}")
        add_settings(parser, "--execution", execution)

    def prepare(self, options: argparse.Namespace, load: Loader) -> Prepared:
        rules = load_dataclass(Rules, values(options.rules), "--rules")
        given = {"slots": cores(), **values(options.execution)}
        execution = load_dataclass(Execution, given, "--execution")
        execution.check()
        reading = Reading(load, options)
        train_sets = [one for one in sources.CODE_TRAIN if one.name == options.train_set]
        test_sets = [one for one in sources.CODE_TEST if one.name in options.test_set]
        opened = reading.open(train_sets, test_sets)
        settings = {
            "rules": asdict(rules),
            "execution": {name: value for name, value in asdict(execution).items() if name != "slots"},
            "golden": options.golden,
        }
        identity = {"sources": [_identity(part) for part in opened], "verl_mas": version("verl-mas")}
        journal = Journal(options.out / JOURNAL, settings | identity)
        try:
            train, test, counts = asyncio.run(_judged(execution, rules, journal, opened, options.golden == "required"))
        finally:
            journal.close()
        refuse_if_empty(train, TRAIN, counts)
        refuse_if_empty(test, TEST, counts)
        validation = first_of_each(test, {}, otherwise=IN_TRAINING)
        return reading.prepared(train, test, validation, {**settings, "tasks": counts})


async def _judged(
    execution: Execution,
    rules: Rules,
    journal: Journal,
    opened: tuple[list[RowSource], list[RowSource]],
    golden_required: bool,
) -> tuple[list[CodeItem], list[CodeItem], Mapping[str, object]]:
    executor = execution.open()
    work = Preparation(
        Judge(executor, execution.limits, rules), journal, at_once=2 * execution.slots, golden_required=golden_required
    )
    try:
        return await work.items(opened[0], TRAIN), await work.items(opened[1], TEST), work.counts
    finally:
        await executor.aclose()


def _names(sets: Sequence[PublicSet]) -> list[str]:
    return [one.name for one in sets]


def _identity(part: Sequence[RowSource]) -> list[object]:
    """What tells whether a source is the one that a journal was written of."""
    identities: list[object] = []
    for source in part:
        path = source.record.get("file")
        stat = Path(path).stat() if isinstance(path, str) else None
        identities.append([source.name, {**source.record}, [stat.st_size, stat.st_mtime_ns] if stat else None])
    return identities
