"""Arguments that name files of as many rows as a step of verl's defaults takes, for checks of a configuration."""

from __future__ import annotations

import atexit
import shutil
import tempfile
from pathlib import Path

ROWS = 1024
_FOLDER = Path(tempfile.mkdtemp(prefix="rows-"))
atexit.register(shutil.rmtree, _FOLDER, ignore_errors=True)


def _named(file: str) -> list[str]:
    lines = Path(__file__).with_name(file).read_text().splitlines(keepends=True)
    path = _FOLDER / file
    path.write_text("".join(lines * (ROWS // len(lines))))
    return [f"data.train_files={path}", f"data.val_files={path}"]


QUESTIONS, PUZZLES = _named("questions.jsonl"), _named("puzzles.jsonl")
