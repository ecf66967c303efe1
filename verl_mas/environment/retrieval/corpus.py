"""Passages of a corpus, and functions that read a corpus from JSON lines or parquet, and write it."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from verl_mas.environment.retrieval.files import Row, read_rows
from verl_mas.errors import DataError

MANY = 1_000_000  # only the first rows of a corpus, up to this number, are checked for duplicate ids


@dataclass(frozen=True)
class Passage:
    """One document of a corpus; a search adds its score."""

    id: str
    text: str
    title: str = ""
    score: float | None = None

    @property
    def contents(self) -> str:
        """The title and the text as one string, as in the corpus files of Search-R1."""
        return f'"{self.title}"\n{self.text}' if self.title else self.text

    @classmethod
    def from_row(cls, row: Row, number: int, source: str = "corpus") -> Passage:
        """Read `{id, contents}` (Search-R1) or `{id, title, text}`. A missing id is replaced by the row's number."""
        title, text = row.get("title") or "", row.get("text") or ""
        if not text and isinstance(row.get("contents"), str):
            # In Search-R1's form, the first line is the title, in quotes.
            first, _, rest = row["contents"].partition("\n")
            title, text = (first.strip().strip('"'), rest) if rest.strip() else ("", row["contents"])
        if not isinstance(text, str) or not text.strip():
            rule = 'each row holds {"text": ...} or {"contents": ...}, and optionally "id" and "title"'
            fix = f"correct or remove the row; its fields are: {', '.join(map(str, row)) or 'none'}"
            raise DataError(f"{source}, row {number} (id {row.get('id')!r}) has no text", rule=rule, fix=fix)
        passage = cls(id=str(row["id"]) if row.get("id") is not None else str(number), text=text, title=str(title))
        try:
            f"{passage.id}{passage.title}{text}".encode()
        except UnicodeEncodeError as error:
            value = f"{source}, row {number} (id {row.get('id')!r}): {error.reason} at character {error.start}"
            rule = "a passage is Unicode text; half of a surrogate pair is not a character"
            raise DataError(value, rule=rule, fix="correct or remove the row") from error
        return passage

    @classmethod
    def from_json(cls, line: bytes, score: float | None = None) -> Passage:
        return cls(**json.loads(line), score=score)

    def to_json(self) -> bytes:
        """The form in which an index stores a passage."""
        return json.dumps({"id": self.id, "title": self.title, "text": self.text}).encode()

    def document(self) -> dict[str, str]:
        """The form in which `/retrieve` sends a passage."""
        return {"id": self.id, "title": self.title, "text": self.text, "contents": self.contents}


def read_corpus(path: str | Path) -> Iterator[Passage]:
    """Yield the passages of a `.jsonl`, `.jsonl.gz` or `.parquet` file."""
    known = set[str]()
    for number, row in enumerate(read_rows(Path(path))):
        passage = Passage.from_row(row, number, str(path))
        if passage.id in known:
            rule = "a search identifies passages by their ids"
            raise DataError(
                f"{path}, row {number}: the id {passage.id!r} is used twice", rule=rule, fix="number them again"
            )
        if number < MANY:  # a set of all ids of a large corpus would take gigabytes
            known.add(passage.id)
        yield passage


def write_corpus(folder: Path, passages: Iterable[Passage]) -> None:
    """Write corpus.jsonl, from which an index is built."""
    folder.mkdir(parents=True, exist_ok=True)
    with open(folder / "corpus.jsonl", "wb") as corpus:
        corpus.writelines(passage.to_json() + b"\n" for passage in passages)
