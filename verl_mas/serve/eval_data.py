"""The tasks of an evaluation: rows of a file that verl reads, too."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pyarrow
import pyarrow.parquet

from verl_mas.errors import DataError
from verl_mas.registry import nearest
from verl_mas.row import GLOBAL_STEPS, RAW_PROMPT, SESSION_ID, UID
from verl_mas.verl_types import Fields
from verl_mas.workflow.task import Task

MEDIA = ("images", "videos", "audios")
FORMATS = (".parquet", ".jsonl", ".json")


def read_rows(path: Path, prompt_key: str, limit: int | None = None) -> list[Fields]:
    """Rows as verl's dataset makes them, with the messages as `raw_prompt`. Text only."""
    if path.suffix not in FORMATS:
        raise DataError(f"--data {path}", rule=f"it is a file of {', '.join(FORMATS)}", fix="convert it")
    if not path.is_file():
        raise DataError(f"--data {path} is not there", rule="it is a file with a row per task", fix="check the path")
    try:
        rows = list(_rows(path, limit))
    except (OSError, ValueError, pyarrow.ArrowException) as error:
        cause = str(error).splitlines()[0]
        raise DataError(f"--data {path}: {cause}", rule="it can be read", fix="write it again") from error
    if not rows:
        raise DataError(f"--data {path} has no row", rule="it has a row per task", fix="give another file")
    return [_row(row, number, path, prompt_key) for number, row in enumerate(rows)]


def _rows(path: Path, limit: int | None) -> Iterator[Fields]:
    if path.suffix == ".parquet":
        table = pyarrow.parquet.read_table(path)
        yield from (table if limit is None else table.slice(0, limit)).to_pylist()
        return
    with path.open(encoding="utf-8") as lines:
        for number, line in enumerate(filter(str.strip, lines)):
            if number == limit:
                return
            row = json.loads(line)
            if not isinstance(row, dict):
                raise ValueError(f"line {number + 1} is not an object")
            yield row


def _row(row: Fields, number: int, path: Path, prompt_key: str) -> Fields:
    where = f"--data {path}, row {number}"
    if prompt_key not in row:
        raise DataError(
            f"{where} has no {prompt_key}",
            rule=f"its column {prompt_key} has the messages (data.prompt_key of the run)",
            fix=nearest(prompt_key, list(row)),
        )
    messages = row[prompt_key]
    if not isinstance(messages, list) or not all(isinstance(one, dict) and "role" in one for one in messages):
        raise DataError(
            f"{where}: {prompt_key}={messages!r:.80}",
            rule="it is a list of messages with role and content",
            fix='write [{"role": "user", "content": "..."}]',
        )
    if media := next((name for name in MEDIA if row.get(name)), None):
        raise DataError(f"{where} has {media}", rule="an evaluation asks in text", fix="leave such rows out")
    extra = row.get("extra_info") or {}
    made = {
        **row,
        RAW_PROMPT: [{name: value for name, value in one.items() if value is not None} for one in messages],
        "extra_info": extra,
        "index": extra.get("index", 0),
        "tools_kwargs": extra.get("tools_kwargs", {}),
        "interaction_kwargs": extra.get("interaction_kwargs", {}),
    }
    return {name: value for name, value in made.items() if name not in MEDIA}


def task_of(row: Fields, number: int, session: int, step: int) -> Task:
    """One of the sessions on a row. Its name, and so its seed, is the same in every evaluation."""
    fields = {**row, UID: f"eval-{number}", SESSION_ID: session, GLOBAL_STEPS: step}
    # A reward function may write into it.
    fields["extra_info"] = dict(row["extra_info"])
    return Task.of_row(fields, validate=True, greedy=False)
