"""The files that verl reads: data, of Parquet the footer and the first rows, and functions of the user."""

from __future__ import annotations

import ast
import importlib.util
import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from functools import cache
from itertools import chain, islice, pairwise
from pathlib import Path
from typing import TYPE_CHECKING

from omegaconf import DictConfig, ListConfig, OmegaConf

from verl_mas.checks.verl.place import is_remote, missing
from verl_mas.checks.verl.refusals import Problem
from verl_mas.errors import ConfigError, ConfigWarning
from verl_mas.registry import nearest
from verl_mas.row import DATA_SOURCE, EXTRA_INFO, GROUND_TRUTH, REWARD_MODEL
from verl_mas.verl_.sources import find, names_in
from verl_mas.verl_.types import Fields

if TYPE_CHECKING:
    import pyarrow

SETTINGS = ("data.train_files", "data.val_files")
SUFFIXES = (".parquet", ".json", ".jsonl")
ROLES = {"system", "developer", "user", "assistant", "tool"}
TRUTH = f"{REWARD_MODEL}.{GROUND_TRUTH}"
SAMPLE = 64  # Rows that are looked at; all rows of a JSON file are parsed


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

    @property
    def row(self) -> Fields:
        return self.sample[0]


def check_data(config: DictConfig, *, scored: bool) -> Iterator[Problem]:
    """`scored`: whether verl's reward manager scores every session; else the run may have rewards of its own."""
    for setting in () if _read_by_user_code(config) else SETTINGS:
        found = [_first_row(config, setting, path) for path in _paths(config, setting)]
        if not found:
            fix = f"set {setting}=<file>.parquet"
            yield ConfigError(f"{setting}=[]", rule="verl reads at least one file", fix=fix)
        for first in found:
            if isinstance(first, FirstRow):
                yield from _columns(config, first, scored=scored)
            else:
                yield first
        yield from _other_types([first for first in found if isinstance(first, FirstRow)])
        if setting == SETTINGS[0]:
            yield from _batches(config, found)


def _other_types(found: Sequence[FirstRow]) -> Iterator[ConfigError]:
    rule = "verl joins the files of a setting, and a column has one type"
    for first, other in pairwise(found):
        both = sorted(first.types.keys() & other.types.keys())
        different = [leaf for leaf in both if first.types[leaf] != other.types[leaf]]
        for leaf in different:
            value = f"{leaf} is {first.types[leaf]} in {first.file}, and {other.types[leaf]} in {other.file}"
            yield ConfigError(value, rule=rule, fix="write both files with the same types")
        schemas = [one.fields for one in (first, other) if one.fields]
        if not different and len(schemas) > 1 and (why := _unjoined(schemas)):
            value = f"{first.file} and {other.file}: {why:.300}"
            yield ConfigError(value, rule=rule, fix="write both files with the same columns and fields")


def _unjoined(schemas: Iterable[pyarrow.Schema]) -> str:
    """Why `datasets`, with which verl joins the files, does not."""
    from datasets import Dataset, Features, concatenate_datasets

    try:
        # A file without rows is left out.
        rows = [
            Dataset.from_dict({name: [None] for name in one.names}, Features.from_arrow_schema(one)) for one in schemas
        ]
        concatenate_datasets(rows)
    except ValueError as error:
        return str(error).splitlines()[0]
    return ""


def sound_rows(config: DictConfig) -> Iterator[FirstRow]:
    """The first row of train_files and that of val_files, if verl can read it."""
    for setting in () if _read_by_user_code(config) else SETTINGS:
        for path in _paths(config, setting)[:1]:
            first = _first_row(config, setting, path)
            prompt = str(config.data.prompt_key)
            if isinstance(first, FirstRow) and is_prompt(first.row.get(prompt)) and not _no_mappings(first.row):
                yield replace(first, validation=setting == "data.val_files")


def _read_by_user_code(config: DictConfig) -> bool:
    """Whether a class of the user reads the files; check_functions looks for it."""
    return bool(OmegaConf.select(config, "data.custom_cls.path"))


def _paths(config: DictConfig, setting: str) -> list[object]:
    value = OmegaConf.select(config, setting)
    return list(value) if isinstance(value, list | ListConfig) else [value]


def _first_row(config: DictConfig, setting: str, path: object) -> FirstRow | Problem:
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
    rows, later, nulls = list[Fields](), list[Problem](), Counter[str]()
    while end < len(text):
        value, end = json.JSONDecoder().raw_decode(text, end)
        for row in value if isinstance(value, list) and not total else [value]:
            total += 1
            if not isinstance(row, dict):
                raise ValueError(f"row {total} is {json.dumps(row)[:40]}, not an object")
            rows += [row] if total <= SAMPLE else []
            nulls.update(leaf for leaf, value in scored_by(row).items() if value in (None, ""))
            if total > SAMPLE and not later:
                later += filter(None, [prompt_fault(f"{file}, column {key!r}, row {total}", row.get(key))])
        while end < len(text) and text[end].isspace():
            end += 1
    return FirstRow(str(file), list(rows[0]), rows, total, nulls, later=later) if rows else None


def scored_by(row: Fields) -> Fields:
    """The leaves that a score is computed of."""
    given = row.get(REWARD_MODEL)
    return {DATA_SOURCE: row.get(DATA_SOURCE), TRUTH: given.get(GROUND_TRUTH) if isinstance(given, dict) else None}


def _columns(config: DictConfig, first: FirstRow, *, scored: bool) -> Iterator[Problem]:
    key = str(config.data.prompt_key)
    if key not in first.columns:
        value = f"{first.file} has no column {key!r}"
        fix = f"set data.prompt_key; {nearest(key, first.columns)}"
        yield ConfigError(value, rule="data.prompt_key names the column of the prompts", fix=fix)
    else:
        where = f"{first.file}, column {key!r}"
        faults = (prompt_fault(f"{where}, row {number}", row.get(key)) for number, row in enumerate(first.sample, 1))
        yield from islice(filter(None, chain(faults, _later(first, key, where))), 1)
    for name in _no_mappings(first.row):
        value = f"{first.file}, column {name!r}, first row: {repr(first.row[name])[:120]}"
        yield ConfigError(value, rule="it is a mapping, or null", fix="write the column again, or leave it out")
    for leaf, own in scored_by(first.row).items():
        count = first.nulls.get(leaf)
        if own not in (None, "") and (count or leaf in first.empty):
            reason = "the first row has one, and a session without it has nothing to be scored by"
            value = f"{first.file}: {f'{count} rows have' if count else 'a row has'} no {leaf}"
            yield ConfigWarning(value, reason, "write it into every row")
    if lacking := list(_reward_columns(config, first.row)):
        value, rule = f"{first.file} has no {' and no '.join(lacking)} in its first row", "verl's reward manager reads"
        fix = "write the column, or set reward.reward_manager.source=importlib with a reward manager of yours"
        if scored:
            yield ConfigError(value, rule=f"{rule} it", fix=fix)
        else:
            reason = f"{rule} it in every session that the workflow does not reward itself"
            yield ConfigWarning(value, reason=reason, fix=fix)


def _later(first: FirstRow, key: str, where: str) -> Iterator[Problem]:
    yield from first.later
    for leaf in (leaf for leaf in first.nulls if leaf.startswith(f"{key}.") and leaf.endswith(".role")):
        yield _no_prompt(f"{where}: {first.nulls[leaf]} rows or messages without a role")
    # A message may have no text in every row, or where it calls tools.
    silent = any(leaf.startswith(f"{key}.") and leaf.endswith(".content") for leaf in {*first.empty, *first.nulls})
    usual = re.search(r"'content': (''|None)", str(first.sample)) if silent else None
    if silent and not usual and not any(".tool_calls." in leaf for leaf in first.types):
        yield _silent(f"{where}: a message")


def _no_mappings(row: Fields) -> list[str]:
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


def _no_prompt(value: str) -> ConfigError:
    fix = 'write each prompt as [{"role": "user", "content": "..."}], or set data.prompt_key'
    return ConfigError(value, rule="a prompt is a list of messages, each with a role and a content", fix=fix)


def prompt_fault(where: str, prompt: object) -> Problem | None:
    if not isinstance(prompt, list) or not is_prompt(prompt):
        return _no_prompt(f"{where}: {repr(prompt)[:120]}")
    text = json.dumps(prompt, ensure_ascii=False, default=str)
    half = any("\ud800" <= character <= "\udfff" for character in text)
    if half or "\\u0000" in text:
        value = f"{where} has {'half a surrogate pair, which is no text' if half else 'a null byte'}"
        fix = "clean the texts and write the file again"
        return ConfigError(value, rule="tokenizers take text in UTF-8 without null bytes", fix=fix)
    roles = {message["role"] for message in prompt}
    if "user" not in roles or not roles <= ROLES:
        reason = f"a task is asked by the role user, and chat templates know {', '.join(sorted(ROLES))}"
        fix = "write each message with one of these roles, the task with user"
        return ConfigWarning(f"{where} has messages of {', '.join(sorted(roles))}", reason, fix)
    if not any(message["content"] for message in prompt if message["role"] == "user"):
        return _silent(where)
    if prompt[-1]["role"] == "assistant":
        fix = "leave it out of the prompt; a known answer belongs in reward_model.ground_truth"
        return ConfigWarning(f"{where} ends with a message of the assistant", "the model answers what follows it", fix)
    return None


def _silent(where: str) -> ConfigWarning:
    return ConfigWarning(f"{where} has no text", "the content is what an agent is asked", "write the task into it")


def _reward_columns(config: DictConfig, row: Fields) -> Iterator[str]:
    """The columns that a reward manager of verl reads, of which the row has none."""
    if config.reward.reward_manager.source != "register":
        return
    if row.get(DATA_SOURCE) is None:
        yield f"column {DATA_SOURCE!r}"
    truth = row.get(REWARD_MODEL)
    if not isinstance(truth, dict) or GROUND_TRUTH not in truth:
        yield f"column {REWARD_MODEL!r} with a {GROUND_TRUTH!r}"


def check_scored(config: DictConfig) -> Iterator[ConfigError]:
    """Whether verl's own reward function, where it scores the sessions, knows the data sources of the first rows."""
    own = ("reward.custom_reward_function.path", "custom_reward_function.path", "reward.reward_model.enable")
    if config.reward.reward_manager.source != "register" or any(OmegaConf.select(config, key) for key in own):
        return
    names, prefixes = sources_of_verl()
    for first in sound_rows(config):
        source = first.row.get(DATA_SOURCE)
        if isinstance(source, str) and source not in names and not source.startswith(prefixes):
            yield ConfigError(
                f"{first.file}, column {DATA_SOURCE!r}, first row: {source!r}",
                rule="verl's own reward function scores by the name of the data source, and has no rule for this one",
                fix=f"set reward.custom_reward_function.path to a file with a function of yours; "
                f"{nearest(source, names)}",
            )


@cache
def sources_of_verl() -> tuple[list[str], tuple[str, ...]]:
    """The names that verl's reward function compares a data source with, and the prefixes."""
    function = find("verl.utils.reward_score:default_compute_score")
    nodes = list(ast.walk(function.node)) if function else []
    compared = (node for node in nodes if isinstance(node, ast.Compare))
    started = (node for node in nodes if isinstance(node, ast.Call) and ast.unparse(node.func).endswith(".startswith"))
    return _texts(compared), tuple(_texts(started))


def _texts(nodes: Iterable[ast.AST]) -> list[str]:
    constants = (each for node in nodes for each in ast.walk(node) if isinstance(each, ast.Constant))
    return [each.value for each in constants if isinstance(each.value, str)]


def _batches(config: DictConfig, found: list[FirstRow | Problem]) -> Iterator[Problem]:
    """verl drops the last batch if it is not full."""
    known = [first.total for first in found if isinstance(first, FirstRow)]
    if len(known) < len(found) or config.trainer.val_only:
        return
    most = int(config.data.get("train_max_samples") or -1)
    total = min(sum(known), most) if most > 0 else sum(known)
    size, epochs, steps = config.data.train_batch_size, config.trainer.total_epochs, config.trainer.total_training_steps
    if total < size:
        value = f"{total} rows in data.train_files with data.train_batch_size={size}"
        rule = "a training step takes a whole batch of rows"
        yield ConfigError(value, rule=rule, fix=f"set data.train_batch_size to at most {total}, or give more rows")
    elif (last := epochs * (total // size)) < (steps or 0):
        value = f"trainer.total_training_steps={steps} with trainer.total_epochs={epochs}"
        reason = f"the data has {total} rows, so the run ends at step {last}"
        yield ConfigWarning(value, reason=reason, fix=f"set trainer.total_epochs={-(-steps * epochs // last)}")


# Functions and classes of the user, whose files are parsed, not run.


FILE, PACKAGE = "file://", "pkg://"
DEFAULT_MANAGER = "naive"
# verl's reward managers call a reward function with these names.
REWARD_PARAMETERS = ("data_source", "solution_str", "ground_truth", "extra_info")


@dataclass(frozen=True)
class Named:
    """Two settings: a file or module, and the name of a function or class in it."""

    path: str
    name: str
    noun: str


NAMED = (
    Named("reward.custom_reward_function.path", "reward.custom_reward_function.name", "reward function"),
    Named("custom_reward_function.path", "custom_reward_function.name", "reward function"),
    Named("reward.reward_manager.module.path", "reward.reward_manager.name", "reward manager"),
    Named("data.custom_cls.path", "data.custom_cls.name", "dataset class"),
    Named("trainer.v1.sampler.custom_sampler.path", "trainer.v1.sampler.custom_sampler.name", "sampler class"),
)


def check_functions(config: DictConfig) -> Iterator[Problem]:
    yield from _reward_manager(config)
    for named in NAMED:
        if path := OmegaConf.select(config, named.path):
            yield from _check(config, named, str(path), OmegaConf.select(config, named.name))


def _reward_manager(config: DictConfig) -> Iterator[ConfigError]:
    manager = config.reward.reward_manager
    if manager.source != "register" or manager.name == DEFAULT_MANAGER:
        return  # Importing verl's managers takes seconds.
    from verl.experimental.reward_loop.reward_manager.registry import REWARD_MANAGER

    if manager.name not in REWARD_MANAGER:
        value = f"reward.reward_manager.name={manager.name}"
        rule = "with reward.reward_manager.source=register it is a reward manager of verl"
        yield ConfigError(value, rule=rule, fix=nearest(str(manager.name), list(REWARD_MANAGER)))


def _check(config: DictConfig, named: Named, path: str, name: object) -> Iterator[Problem]:
    if not isinstance(name, str) or not name:
        rule = f"it is the name of the {named.noun} in that file"
        yield ConfigError(f"{named.name}={name!r} with {named.path}={path}", rule=rule, fix=f"set {named.name}")
        return
    file = file_of_user(path)
    if file is None or not file.is_file():
        yield missing(config, named.path, path, f"a Python file with the {named.noun}")
        return
    try:
        tree = ast.parse(file.read_bytes(), str(file))
    except (SyntaxError, ValueError) as error:
        line = getattr(error, "lineno", None) or 1
        value = f"{file}, line {line}: {getattr(error, 'msg', None) or error}"
        yield ConfigError(value, rule=f"{named.path} is a Python file", fix=f"correct {file}, line {line}")
        return
    known = names_in(tree)
    if name not in known:
        if "*" not in known:
            value = f"{named.name}={name}, and {file} does not define it"
            rule = f"it is the name of the {named.noun} in that file"
            yield ConfigError(value, rule=rule, fix=nearest(name, [each for each in known if not each.startswith("_")]))
    elif named.noun.endswith("class") and not _is_class(known[name]):
        value, rule = f"{named.name}={name} of {file}", f"it is a {named.noun}, which inherits from verl's or torch's"
        yield ConfigError(value, rule=rule, fix=f"define class {name}(...)")
    elif named.noun == "reward function" and (lacking := _lacking(known[name])):
        value = f"{name} of {file} does not take {', '.join(lacking)}"
        rule = f"verl calls a reward function with {', '.join(REWARD_PARAMETERS)}, by name"
        yield ConfigError(value, rule=rule, fix="add the parameters, or **kwargs")


def _is_class(node: ast.AST) -> bool:
    """As far as the source shows it."""
    constant = isinstance(node, ast.Assign | ast.AnnAssign) and isinstance(node.value, ast.Constant)
    function = isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    return not (constant or function or (isinstance(node, ast.ClassDef) and not node.bases))


def file_of_user(path: str) -> Path | None:
    """The file that verl loads; None if there is no such module."""
    if not path.startswith(PACKAGE):
        return Path(path.removeprefix(FILE))
    module = path.removeprefix(PACKAGE).replace("/", ".")
    try:
        spec = importlib.util.find_spec(module)
    except (ImportError, ValueError):
        return None
    return Path(spec.origin) if spec is not None and spec.origin else None


def _lacking(node: ast.AST) -> list[str]:
    if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) or node.args.kwarg or node.decorator_list:
        return []
    taken = {parameter.arg for parameter in (*node.args.args, *node.args.kwonlyargs)}
    return [name for name in REWARD_PARAMETERS if name not in taken]
