"""Arguments that name small files of rows, for checks of a configuration."""

from __future__ import annotations

from pathlib import Path


def _named(file: str) -> list[str]:
    path = Path(__file__).with_name(file)
    return [f"data.train_files={path}", f"data.val_files={path}"]


QUESTIONS, PUZZLES = _named("questions.jsonl"), _named("puzzles.jsonl")
