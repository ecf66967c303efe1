"""The rows of the data files that verl reads: of Parquet the footer and the first rows."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from functools import lru_cache
from itertools import chain, islice
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING

from omegaconf import DictConfig, ListConfig, OmegaConf

from verl_mas.checks.verl.place import is_remote, missing
from verl_mas.checks.verl.refusals import Problem
from verl_mas.errors import ConfigError, ConfigWarning
from verl_mas.row import DATA_SOURCE, EXTRA_INFO, GROUND_TRUTH, REWARD_MODEL
from verl_mas.verl_.types import Fields

if TYPE_CHECKING:
    import pyarrow

SETTINGS = ("data.train_files", "data.val_files")
SUFFIXES = (".parquet", ".json", ".jsonl")
ROLES = {"system", "developer", "user", "assistant", "tool"}
TRUTH = f"{REWARD_MODEL}.{GROUND_TRUTH}"
# Python's type of a value in JSON -> the physical type of a column of them in Parquet
OF_PARQUET = {str: "BYTE_ARRAY", int: "INT64", bool: "BOOLEAN"}
SAMPLE = 64  # Rows that are looked at; all rows of a JSON file are parsed
MANY, BYTES = 10_000, 10_000_000


@dataclass(frozen=True)
class FirstRow:
    """The first row of a file, and those after it, of `total`."""

    file: str
    columns: list[str]
    sample: Sequence[Fields]
    total: int
    nulls: Mapping[str, int] = field(default_factory=dict)  # of a leaf of a column
    types: Mapping[str, str] = field(default_factory=dict)  # of those that some row has
    empty: Set[str] = frozenset()  # those with a text that is empty
    later: Sequence[Problem] = ()  # of prompts after the sample, of a JSON file
    validation: bool = False
    fields: pyarrow.Schema | None = None  # of a Parquet file
    many: Sequence[Fields] = ()  # of another

    @property
    def row(self) -> Fields:
        return self.sample[0]


def sound_rows(config: DictConfig) -> Iterator[FirstRow]:
    """The first row of each of train_files and val_files that verl can read."""
    for setting in () if read_by_user_code(config) else SETTINGS:
        for path in paths_of(config, setting):
            first = first_row(config, setting, path)
            prompt = str(config.data.prompt_key)
            if isinstance(first, FirstRow) and is_prompt(first.row.get(prompt)) and not no_mappings(first.row):
                yield replace(first, validation=setting == "data.val_files")


def many_rows(first: FirstRow) -> Sequence[Fields]:
    """The first MANY rows, or fewer of a file with large rows; as images make them."""
    return first.many or _many_rows(Path(first.file), Path(first.file).stat().st_mtime_ns)


@lru_cache(2)
def _many_rows(file: Path, changed: int) -> Sequence[Fields]:
    import pyarrow.parquet

    with pyarrow.parquet.ParquetFile(file) as opened:
        most = min(MANY, opened.metadata.num_rows * BYTES // (1 + file.stat().st_size))
        batches = islice(opened.iter_batches(batch_size=SAMPLE), max(1, most // SAMPLE))
        return list(chain(*(batch.to_pylist() for batch in batches)))


def other_rows(first: FirstRow, prompt: str) -> dict[int, Fields]:
    """The row with the longest prompt, the last one, one of each kind, by which fields have a value and where it is
    from, and then some that are spread over the file; by their numbers."""
    rows = [row for row in many_rows(first) if not no_mappings(row)]
    kinds = {(str(row.get(DATA_SOURCE)), _shape(row)): number for number, row in reversed([*enumerate(rows, 1)])}
    spread = list(range(1, len(rows) + 1, len(rows) // (4 * SAMPLE) + 1))
    Random(0).shuffle(spread)  # The time may not be enough for all.
    longest = max(range(1, len(rows) + 1), key=lambda number: len(str(rows[number - 1].get(prompt))), default=1)
    numbers = [longest, len(rows), *sorted(kinds.values())[:SAMPLE], *spread] if rows else []
    return {number: rows[number - 1] for number in numbers}


def as_text(row: Fields, prompt: str) -> str:
    """What makes a task, of which other files may have more columns."""
    names = (prompt, DATA_SOURCE, REWARD_MODEL, EXTRA_INFO)
    return json.dumps([row.get(name) for name in names], sort_keys=True, default=str)


def _shape(value: object) -> object:
    if isinstance(value, dict):
        return frozenset((name, _shape(each)) for name, each in value.items())
    return type(value), bool(value)


def read_by_user_code(config: DictConfig) -> bool:
    """Whether a class of the user reads the files; check_functions looks for it."""
    return bool(OmegaConf.select(config, "data.custom_cls.path"))


def paths_of(config: DictConfig, setting: str) -> list[object]:
    value = OmegaConf.select(config, setting)
    return list(value) if isinstance(value, list | ListConfig) else [value]


def first_row(config: DictConfig, setting: str, path: object) -> FirstRow | Problem:
    if not isinstance(path, str) or not path:
        return ConfigError(
            f"{setting}={path!r}", rule="it is a path or a list of paths", fix=f"set {setting}=<file>.parquet"
        )
    if is_remote(path):
        return ConfigWarning(
            f"{setting}={path}", reason="not checked: the file is copied when the run starts", fix="copy it yourself"
        )
    if not path.endswith(SUFFIXES):
        return ConfigError(
            f"{setting}={path}", rule=f"verl reads files that end in {', '.join(SUFFIXES)}", fix="convert the file"
        )
    file = Path(path).expanduser()
    if "\0" in path or not file.is_file():
        return missing(config, setting, path, "an existing file of rows")
    try:
        first = _parquet(file) if path.endswith(".parquet") else _json(file, str(config.data.prompt_key))
    # Arrow's and JSON's errors are ValueErrors.
    except (OSError, ValueError) as error:
        value = f"{setting}={path} cannot be read: {str(error).splitlines()[0]}"
        rule = "it is a whole file of the kind that its name ends in, with text in UTF-8"
        return ConfigError(value, rule=rule, fix="write or copy the file again")
    if first is None:
        return ConfigError(f"{setting}={path} has no rows", rule="a data file has rows", fix="write the file again")
    return first


def _parquet(file: Path) -> FirstRow | None:
    import pyarrow.parquet

    # Without pre_buffer and with a buffer, pages are read one by one, also of a row group of gigabytes.
    with pyarrow.parquet.ParquetFile(file, pre_buffer=False, buffer_size=1 << 16) as opened:
        batch = next(opened.iter_batches(batch_size=SAMPLE), None)
        if batch is None or not batch.num_rows:
            return None
        footer = opened.metadata
        groups = [footer.row_group(number).to_dict()["columns"] for number in range(footer.num_row_groups)]
        nulls, types, empty = dict[str, int](), dict[str, str](), set[str]()
        for part in chain(*groups):
            # A column of nothing but nulls has no statistics.
            leaf, known = part["path_in_schema"], part["statistics"] or {}
            count = known.get("null_count")
            nulls |= {leaf: nulls.get(leaf, 0) + count} if count else {}
            empty |= {leaf} if known.get("min") == "" else set()
            types |= {leaf: part["physical_type"]} if count is not None and count < part["num_values"] else {}
        fields = opened.schema_arrow
        return FirstRow(str(file), fields.names, batch.to_pylist(), footer.num_rows, nulls, types, empty, fields=fields)


def _json(file: Path, key: str) -> FirstRow | None:
    """Of objects one after another, each on its line, or one array of them."""
    text, total, end = file.read_text(encoding="utf-8-sig").strip(), 0, 0
    rows, later, nulls, types = list[Fields](), list[Problem](), Counter[str](), dict[str, str]()
    while end < len(text):
        value, end = json.JSONDecoder().raw_decode(text, end)
        for row in value if isinstance(value, list) and not total else [value]:
            total += 1
            if not isinstance(row, dict):
                raise ValueError(f"row {total} is {json.dumps(row)[:40]}, not an object")
            rows += [row] if total <= MANY else []
            nulls.update(leaf for leaf, value in scored_by(row).items() if value in (None, ""))
            extra = row.get(EXTRA_INFO)
            own = {f"{EXTRA_INFO}.{name}": value for name, value in extra.items()} if isinstance(extra, dict) else {}
            leaves = {**scored_by(row), **own}.items()
            types |= {leaf: OF_PARQUET[type(value)] for leaf, value in leaves if type(value) in OF_PARQUET}
            if other := [name for name in no_mappings(row) if isinstance(rows[0].get(name), dict)]:
                raise ValueError(f"row {total} has {other[0]} that is no object, and the first row has one")
            if total > SAMPLE and not later:
                later += filter(None, [prompt_fault(f"{file}, column {key!r}, row {total}", row.get(key))])
        while end < len(text) and text[end].isspace():
            end += 1
    if not rows:
        return None
    return FirstRow(str(file), list(rows[0]), rows[:SAMPLE], total, nulls, types, later=later, many=rows)


def scored_by(row: Fields) -> Fields:
    """The leaves that a score is computed of."""
    given = row.get(REWARD_MODEL)
    return {DATA_SOURCE: row.get(DATA_SOURCE), TRUTH: given.get(GROUND_TRUTH) if isinstance(given, dict) else None}


def texts_of(file: str, leaf: str) -> set[str]:
    """Of a leaf of a Parquet file, in all rows."""
    import pyarrow.parquet

    with pyarrow.parquet.ParquetFile(file) as opened:
        column = opened.read(columns=[leaf]).column(0).combine_chunks()
    while pyarrow.types.is_nested(column.type):
        column = column.field(0) if pyarrow.types.is_struct(column.type) else column.flatten()
    return set(column.unique().to_pylist()) - {None}


def no_mappings(row: Fields) -> list[str]:
    return [name for name in (EXTRA_INFO, REWARD_MODEL) if not isinstance(row.get(name) or {}, dict)]


def is_prompt(value: object) -> bool:
    return isinstance(value, list) and bool(value) and all(map(_is_message, value))


def _is_message(value: object) -> bool:
    """A content is a text or a list of parts; one that calls tools may have none."""
    if not isinstance(value, dict) or not isinstance(value.get("role"), str):
        return False
    content = value.get("content")
    parts = isinstance(content, list) and all(isinstance(part, dict) for part in content)
    return isinstance(content, str) or parts or bool("content" in value and value.get("tool_calls"))


def no_prompt(value: str) -> ConfigError:
    fix = 'write each prompt as [{"role": "user", "content": "..."}], or set data.prompt_key'
    return ConfigError(value, rule="a prompt is a list of messages, each with a role and a content", fix=fix)


def prompt_fault(where: str, prompt: object) -> Problem | None:
    if not isinstance(prompt, list) or not is_prompt(prompt):
        return no_prompt(f"{where}: {repr(prompt)[:120]}")
    text = json.dumps(prompt, ensure_ascii=False, default=str)
    half = any("\ud800" <= character <= "\udfff" for character in text)
    if half or "\\u0000" in text:
        value = f"{where} has {'half a surrogate pair, which is no text' if half else 'a null byte'}"
        fix = "clean the texts and write the file again"
        return ConfigError(value, rule="tokenizers take text in UTF-8 without null bytes", fix=fix)
    roles = {message["role"] for message in prompt}
    if "user" not in roles or not roles <= ROLES:
        return other_roles(where, roles)
    if not any(message["content"] for message in prompt if message["role"] == "user"):
        return without_text(where)
    if prompt[-1]["role"] == "assistant":
        fix = "leave it out of the prompt; a known answer belongs in reward_model.ground_truth"
        return ConfigWarning(f"{where} ends with a message of the assistant", "the model answers what follows it", fix)
    return None


def other_roles(where: str, roles: Iterable[str]) -> ConfigWarning:
    reason = f"a task is asked by the role user, and chat templates know {', '.join(sorted(ROLES))}"
    fix = "write each message with one of these roles, the task with user"
    return ConfigWarning(f"{where} has messages of {', '.join(sorted(roles))}", reason, fix)


def without_text(where: str) -> ConfigWarning:
    return ConfigWarning(f"{where} has no text", "the content is what an agent is asked", "write the task into it")
