"""Arguments with data files for checks of a configuration. They have as many rows as a step of verl's defaults
takes."""

import atexit
import json
import shutil
import tempfile
from pathlib import Path

ROWS = 1024
_FOLDER = Path(tempfile.mkdtemp(prefix="rows-"))
atexit.register(shutil.rmtree, _FOLDER, ignore_errors=True)


def _named(file: str) -> list[str]:
    """Write the rows of a file repeatedly, each with a different index, for training and validation."""
    lines = Path(__file__).with_name(file).read_text().splitlines()
    for split, start in (("train", 0), ("val", ROWS)):
        rows = [json.loads(lines[number % len(lines)]) for number in range(ROWS)]
        for number, row in enumerate(rows, start):
            row["extra_info"] = {**row.get("extra_info", {}), "index": number}
        (_FOLDER / f"{split}_{file}").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    return [f"data.{split}_files={_FOLDER / f'{split}_{file}'}" for split in ("train", "val")]


QUESTIONS, PUZZLES = _named("questions.jsonl"), _named("puzzles.jsonl")
