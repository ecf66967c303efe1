"""Checks of a run's data files by their first rows, read as verl's dataset reads them."""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import islice
from pathlib import Path

from omegaconf import DictConfig, ListConfig, OmegaConf

from verl_mas.checks.place import is_remote, missing
from verl_mas.checks.refusals import Problem
from verl_mas.config.registry import nearest
from verl_mas.config.run import Run
from verl_mas.errors import ConfigError, ConfigWarning
from verl_mas.verl_.row import EXTRA_INFO, GROUND_TRUTH, REWARD_MODEL
from verl_mas.verl_.types import Fields
from verl_mas.workflow.task import text_of

SETTINGS = ("data.train_files", "data.val_files")
SUFFIXES = (".parquet", ".json", ".jsonl")
ROLES = {"system", "developer", "user", "assistant", "tool"}
SAMPLE = 64  # Number of rows that are checked


@dataclass(frozen=True)
class FirstRows:
    """The first rows of a file that has `total` rows."""

    file: str
    columns: Sequence[str]
    sample: Sequence[Fields]
    total: int
    validation: bool = False

    @property
    def row(self) -> Fields:
        return self.sample[0]

    def characters(self, prompt_key: str) -> float:
        """Mean number of characters per prompt."""
        return sum(len(text_of(message)) for row in self.sample for message in row[prompt_key]) / len(self.sample)


def paths_of(config: DictConfig, setting: str) -> list[object]:
    value = OmegaConf.select(config, setting)
    return list(value) if isinstance(value, list | ListConfig) else [value]


def read_by_user_code(config: DictConfig) -> bool:
    """Whether a dataset class of the user reads the files, so that their format is unknown."""
    return bool(OmegaConf.select(config, "data.custom_cls.path"))


def sound_rows(config: DictConfig) -> Iterator[FirstRows]:
    """Yield the first rows of each file in train_files and val_files whose prompts verl can read."""
    for setting in () if read_by_user_code(config) else SETTINGS:
        for path in paths_of(config, setting):
            first = first_rows(config, setting, path)
            if isinstance(first, FirstRows) and not any(_faults(config, first)):
                yield first


def first_rows(config: DictConfig, setting: str, path: object) -> FirstRows | Problem:
    if not isinstance(path, str) or not path:
        rule, fix = "it is a path or a list of paths", f"set {setting}=<file>.parquet"
        return ConfigError(f"{setting}={path!r}", rule=rule, fix=fix)
    if is_remote(path):
        return ConfigWarning(f"{setting}={path}", "not checked: it is copied when the run starts", "copy it yourself")
    file = Path(path).expanduser()
    if not path.endswith(SUFFIXES):
        rule = f"verl reads files that end in {', '.join(SUFFIXES)}"
        return ConfigError(f"{setting}={path}", rule=rule, fix="convert the file")
    if "\0" in path or not file.is_file():
        return missing(config, setting, path, "an existing file of rows")
    try:
        columns, rows, total = _read(str(file), file.stat().st_mtime_ns)
    # Errors of Arrow and of JSON are ValueErrors.
    except (OSError, ValueError) as error:
        value, fix = f"{setting}={path} cannot be read: {str(error).splitlines()[0]}", "write or copy the file again"
        return ConfigError(value, rule="it is a whole file of the kind that its name ends in", fix=fix)
    if not rows:
        return ConfigError(f"{setting}={path} has no rows", rule="a data file has rows", fix="write the file again")
    return FirstRows(str(file), columns, rows, total, validation=setting == SETTINGS[1])


@lru_cache(maxsize=32)
def _read(file: str, changed: int) -> tuple[Sequence[str], Sequence[Fields], int]:
    if not file.endswith(".parquet"):
        with open(file, encoding="utf-8-sig") as opened:
            lines = list(opened)
        rows = [json.loads(line) for line in islice(filter(str.strip, lines), SAMPLE)]
        if len(rows) == 1 and isinstance(rows[0], list):
            rows, lines = rows[0][:SAMPLE], rows[0]
        if not all(isinstance(row, dict) for row in rows):
            raise ValueError("each line is a JSON object")
        return list(rows[0]) if rows else [], rows, len(lines)
    import pyarrow.parquet

    # These two arguments make Arrow read page by page, instead of a whole row group, which may have gigabytes.
    with pyarrow.parquet.ParquetFile(file, pre_buffer=False, buffer_size=1 << 16) as opened_file:
        batch = next(opened_file.iter_batches(batch_size=SAMPLE), None)
        return opened_file.schema_arrow.names, batch.to_pylist() if batch else [], opened_file.metadata.num_rows


def truth_of(row: Fields) -> object:
    given = row.get(REWARD_MODEL)
    return given.get(GROUND_TRUTH) if isinstance(given, Mapping) else None


def check_data(run: Run) -> Iterator[Problem]:
    config = run.config
    for setting in () if read_by_user_code(config) else SETTINGS:
        found = [first_rows(config, setting, path) for path in paths_of(config, setting)]
        if not found:
            yield ConfigError(f"{setting}=[]", rule="verl reads at least one file", fix=f"set {setting}=<file>.parquet")
        for first in found:
            yield from _faults(config, first) if isinstance(first, FirstRows) else [first]
        totals = [first.total for first in found if isinstance(first, FirstRows)]
        if setting == SETTINGS[0] and len(totals) == len(found):
            yield from _batches(config, sum(totals))


def _faults(config: DictConfig, first: FirstRows) -> Iterator[Problem]:
    key = str(config.data.prompt_key)
    if key not in first.columns:
        fix = f"set data.prompt_key; {nearest(key, list(first.columns))}"
        yield ConfigError(f"{first.file} has no column {key!r}", rule="it is the column of the prompts", fix=fix)
        return
    for number, row in enumerate(first.sample, 1):
        fault = prompt_fault(f"{first.file}, column {key!r}, row {number}", row.get(key))
        for name in (name for name in (EXTRA_INFO, REWARD_MODEL) if not isinstance(row.get(name) or {}, dict)):
            value = f"{first.file}, column {name!r}, row {number}: {row[name]!r:.120}"
            fault = fault or ConfigError(value, rule="it is a mapping, or null", fix="write the column again")
        if fault:
            yield fault
            return


def is_prompt(value: object) -> bool:
    return isinstance(value, list) and bool(value) and all(map(_is_message, value))


def _is_message(value: object) -> bool:
    """Whether a value is a mapping with a role, whose content is a string or a list of parts. The content of a message
    that calls tools may be None."""
    if not isinstance(value, dict) or not isinstance(value.get("role"), str):
        return False
    content = value.get("content")
    return isinstance(content, str | list) or bool("content" in value and value.get("tool_calls"))


def prompt_fault(where: str, prompt: object) -> ConfigError | None:
    if not is_prompt(prompt):
        fix = 'write [{"role": "user", "content": "..."}] (`verl-mas data rows` does), or set data.prompt_key'
        rule = "a prompt is a list of messages, each with a role and a content"
        return ConfigError(f"{where}: {repr(prompt)[:120]}", rule=rule, fix=fix)
    roles = {message["role"] for message in prompt}  # type: ignore[attr-defined]
    if unknown := roles - ROLES:
        value, rule = f"{where} has the role {min(unknown)}", f"roles are {', '.join(sorted(ROLES))}"
        return ConfigError(value, rule=rule, fix="write each message with one of these roles, the task with user")
    return None


def _batches(config: DictConfig, rows: int) -> Iterator[Problem]:
    if config.trainer.val_only:
        return
    most = int(config.data.get("train_max_samples") or -1)
    total = min(rows, most) if most > 0 else rows
    size, epochs, steps = config.data.train_batch_size, config.trainer.total_epochs, config.trainer.total_training_steps
    if total < size:
        value = f"{total} rows in data.train_files with data.train_batch_size={size}"
        fix = f"set data.train_batch_size to at most {total}, or give more rows"
        yield ConfigError(value, rule="a training step takes a whole batch of rows", fix=fix)
    elif steps and (last := epochs * (total // size)) < steps:
        value = f"trainer.total_training_steps={steps} with trainer.total_epochs={epochs}"
        fix = f"set trainer.total_epochs={-(-steps // (total // size))}"
        yield ConfigWarning(value, f"the data has {total} rows, so the run ends at step {last}", fix)


def check_files(config: DictConfig) -> Iterator[Problem]:
    """Check the files with user code that verl loads."""
    if path := OmegaConf.select(config, "custom_reward_function.path"):
        rule = "verl's trainer reads it below reward alone, and would score with its own function"
        fix = f"set reward.custom_reward_function.path={path}, and .name"
        yield ConfigError(f"custom_reward_function.path={path}", rule=rule, fix=fix)
    for setting in (
        "reward.custom_reward_function.path",
        "reward.reward_manager.module.path",
        "data.custom_cls.path",
        "actor_rollout_ref.rollout.agent.agent_loop_config_path",
    ):
        path = OmegaConf.select(config, setting)
        if path and not str(path).startswith("pkg://") and not Path(str(path).removeprefix("file://")).is_file():
            yield missing(config, setting, str(path), "a file that verl loads")
