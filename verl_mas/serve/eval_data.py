"""The tasks of an evaluation: rows of a file that verl reads, too."""

from __future__ import annotations

from itertools import islice
from pathlib import Path

from verl_mas.data import own_rows
from verl_mas.errors import DataError
from verl_mas.registry import nearest
from verl_mas.retrieval.files import Row
from verl_mas.row import GLOBAL_STEPS, RAW_PROMPT, SESSION_ID, UID
from verl_mas.verl_.types import Fields
from verl_mas.workflow.task import Task

MEDIA = ("images", "videos", "audios")


def read_rows(path: Path, prompt_key: str, limit: int | None = None) -> list[Fields]:
    """Rows as verl's dataset makes them, with the messages as `raw_prompt`. Text only."""
    rows = list(islice(own_rows.read(path), limit))
    if not rows:
        raise DataError(f"--data {path} has no row", rule="it has a row per task", fix="give another file")
    return [_row(row, number, path, prompt_key) for number, row in enumerate(rows)]


def _row(row: Row, number: int, path: Path, prompt_key: str) -> Fields:
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
