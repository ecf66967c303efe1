"""The data set `code`: programming tasks whose golden programs are run. Kept and dropped tasks are counted. Each judged
row is written to a journal at once, so that a second preparation resumes where the first one ended."""

from __future__ import annotations

import argparse
import asyncio
import json
import re
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import aclosing, suppress
from dataclasses import asdict
from importlib.metadata import version
from pathlib import Path

from tqdm import tqdm

from verl_mas.cli._arguments import add_settings, values
from verl_mas.cli.data._public import Reading, add_arguments
from verl_mas.config.hydra.recipe.code.formats import Dropped, Format, format_of, read
from verl_mas.config.hydra.recipe.code.golden import Judge, Judged, Rules
from verl_mas.config.hydra.recipe.code.sets import TEST_SETS, TRAIN_SETS
from verl_mas.config.values import load_dataclass
from verl_mas.data.dataset import DATA_SETS, DataSet, Loader, Prepared
from verl_mas.data.items import Item, first_of_each
from verl_mas.data.sources import RowSource
from verl_mas.environment.execution.executor import Execution
from verl_mas.environment.retrieval.files import Row
from verl_mas.errors import ConfigError, DataError
from verl_mas.run_folder.disk import append_line
from verl_mas.util import cores
from verl_mas.util.splits import TEST, TRAIN
from verl_mas.workflow.run import many

DEFAULT_TRAIN = "apps"
DEFAULT_TESTS = ("livecodebench_v6", "apps_test", "code_contests_test")
IN_TRAINING = 50  # Tasks per test set for validation during training


@DATA_SETS.register("code")
class Code(DataSet):
    """Programming tasks with hidden tests, public examples and a golden program: public sets, or files of your own.

    Every golden program is run on the tests. The manifest counts what is dropped, and why.
    """

    def arguments(self, parser: argparse.ArgumentParser) -> None:
        train, test = ([one.name for one in sets] for sets in (TRAIN_SETS, TEST_SETS))
        about = f"the public sets to test on: {', '.join(test)}; default: {' '.join(DEFAULT_TESTS)}"
        golden = "whether a training task needs a golden program that passes its tests; rewards for a tester that "
        golden += "agrees with it do (default: required)"
        execution = "how golden programs are run: executor, packages, cpu_s, memory_mb, output_bytes, url, slots "
        execution += "(default: one per CPU core); use the settings of the team"
        rules = " ".join(f"{name}={value}" for name, value in asdict(Rules()).items())
        parser.add_argument("--train-set", choices=train, help=f"the public set to train on (default: {DEFAULT_TRAIN})")
        parser.add_argument("--test-set", nargs="+", choices=test, metavar="NAME", help=about)
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
        train_sets = [one for one in TRAIN_SETS if one.name == (options.train_set or DEFAULT_TRAIN)]
        test_sets = [one for one in TEST_SETS if one.name in (options.test_set or DEFAULT_TESTS)]
        for part in ("train", "test"):
            if getattr(options, part) and getattr(options, f"{part}_set"):
                rule = f"the files of --{part} take the place of public sets"
                raise ConfigError(f"--{part}-set with --{part}", rule=rule, fix="leave one of them out")
        opened = reading.open(train_sets, test_sets)
        settings = {
            "rules": asdict(rules),
            "execution": {name: value for name, value in asdict(execution).items() if name != "slots"},
            "golden": options.golden,
        }
        identity = {"sources": [_identity(part) for part in opened], "verl_mas": version("verl-mas")}
        journal = Journal(options.out / JOURNAL, settings | identity)
        train, test, counts = asyncio.run(_judged(execution, rules, journal, opened, options.golden == "required"))
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
    async with aclosing(execution.open()) as executor:
        judge = Judge(executor, execution.limits, rules)
        work = Preparation(judge, journal, at_once=2 * execution.slots, golden_required=golden_required)
        return await work.items(opened[0], TRAIN), await work.items(opened[1], TEST), work.counts


def _identity(part: Sequence[RowSource]) -> list[object]:
    """Identify the sources of a journal by their names, records, and the sizes and modification times of files."""
    identities: list[object] = []
    for source in part:
        path = source.record.get("file")
        stat = Path(path).stat() if isinstance(path, str) else None
        identities.append([source.name, {**source.record}, [stat.st_size, stat.st_mtime_ns] if stat else None])
    return identities


JOURNAL = "judged.jsonl"
# The first heading of a statement, such as Input or Examples. From there on, each set has its own way of writing.
SECTION = re.compile(r"^[^\w\n]*(sample |example )?(input|output|examples?|constraints?)\b[^a-z\n]*$", re.I | re.M)
FORMATTING = re.compile(r"\\[a-zA-Z]+|[^a-z0-9]")
NARRATIVE = 60  # characters; a shorter text before the first section does not identify a task
PROGRESS_S = 15.0  # The least seconds between two updates of the progress bar


class CodeItem(Item):
    """A programming task. Its ground truth is the text of a Problem."""

    @property
    def key(self) -> str:
        """The text before the first section, or the whole question if this text is short.

        Formatting is removed, because sets write formulas, headings and examples in several ways.
        """
        section = SECTION.search(self.question)
        narrative = _plain(self.question[: section.start()] if section else self.question)
        return narrative if len(narrative) >= NARRATIVE else _plain(self.question)


def _plain(text: str) -> str:
    return FORMATTING.sub("", text.casefold())


class Journal:
    """Rows judged so far, by split, set and row number. A journal of other data or settings is deleted, and all rows
    are judged again."""

    def __init__(self, path: Path, settings: Mapping[str, object]):
        self.path = path
        self.resumed: dict[tuple[str, str, int], Judged] = {}
        header = json.dumps(settings, sort_keys=True)
        lines = path.read_text(encoding="utf-8").splitlines() if path.is_file() else []
        if lines and lines[0] != header:
            sys.stderr.write(f"{path} is of other data or settings: all rows are judged again\n")
            lines = []
        if not lines:
            path.unlink(missing_ok=True)
            append_line(path, header)
        for line in lines[1:]:
            with suppress(ValueError):  # a line that was cut when the process was killed
                split, name, number, judged = json.loads(line)
                self.resumed[split, name, number] = Judged(**judged)

    def add(self, split: str, name: str, number: int, judged: Judged) -> None:
        append_line(self.path, json.dumps([split, name, number, vars(judged)]))


class Preparation:
    """Judges the rows of sources, `at_once` at a time, and counts per set."""

    def __init__(self, judge: Judge, journal: Journal, *, at_once: int, golden_required: bool):
        self._judge, self._journal, self._at_once = judge, journal, at_once
        self._golden_required = golden_required
        self.counts: dict[str, object] = {}

    async def items(self, sources: Sequence[RowSource], split: str) -> list[CodeItem]:
        """Return the kept tasks, in the order of their rows. Test rows need no golden program."""
        items: list[CodeItem] = []
        for source in sources:
            judged = await self._all(source, split)
            self.counts[source.name] = _counts(judged)
            kept = (each for each in judged if each.dropped is None)
            items += [CodeItem(each.question, each.truth, source.name) for each in kept]
        return items

    async def _all(self, source: RowSource, split: str) -> list[Judged]:
        judged: list[Judged] = []
        form: Format | None = None
        kept = 0

        async def judge(numbered: tuple[int, Row]) -> Judged:
            nonlocal form
            number, row = numbered
            # All rows have the format of the first row, which is judged first.
            form = form or format_of(row, source.title)
            if (resumed := self._journal.resumed.get((split, source.name, number))) is not None:
                return resumed
            found = await self._judged(row, number, source, split, form)
            self._journal.add(split, source.name, number, found)
            return found

        with tqdm(desc=source.name, total=source.expected, unit=" rows", mininterval=PROGRESS_S) as progress:
            async for found in many(enumerate(source.read()), judge, self._at_once, ordered=True):
                judged.append(found)
                kept += found.dropped is None
                progress.set_postfix_str(f"{kept:,} kept", refresh=False)
                progress.update()
        return judged

    async def _judged(self, row: Row, number: int, source: RowSource, split: str, form: Format) -> Judged:
        try:
            draft = read(row, number, source.title, form)
            required = self._golden_required and split == TRAIN
            return await self._judge.judge(draft, f"{source.name} {number}", golden_required=required)
        except Dropped as dropped:
            return Judged(dropped=dropped.reason.value)


def _counts(judged: Sequence[Judged]) -> dict[str, object]:
    kept = [each for each in judged if each.dropped is None]
    return {
        "kept": len(kept),
        "with_golden_program": sum(each.golden for each in kept),
        "dropped": dict(Counter(each.dropped for each in judged if each.dropped is not None)),
        "examples_from": dict(Counter(each.examples_from for each in kept)),
        "without_other_tests_than_examples": sum(each.examples_alone for each in kept),
        "tests_left_out": sum(each.tests_left_out for each in kept),
    }


def refuse_if_empty(items: Sequence[CodeItem], split: str, counts: Mapping[str, object]) -> None:
    if not items:
        rule = "each file has at least one task with tests; with --golden required, one with a right golden program"
        fix = "see the reasons; give other rows, --golden optional, or other --rules and --execution"
        raise DataError(f"no task of {split} is left: {json.dumps(counts)}", rule=rule, fix=fix)
