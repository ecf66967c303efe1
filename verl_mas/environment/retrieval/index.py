"""The interface of an index, and functions that build, store and open an index."""

import json
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import Annotated, Protocol, TypedDict

from verl_mas.config.values import Range
from verl_mas.environment.retrieval.corpus import Passage
from verl_mas.errors import ConfigError, DataError
from verl_mas.run_folder.disk import replaced

META = "index.json"
FORMAT = 2
MAX_TOPK = 100
TopK = Annotated[int, Range(1, MAX_TOPK)]  # passages per query


class Index(Protocol):
    """An index, built once into a folder and then memory-mapped from it. It is thread-safe."""

    def search(self, queries: Sequence[str], k: int) -> list[list[Passage]]:
        """Find the best `k` passages of each query, with their scores. The best passage is first."""

    def __len__(self) -> int: ...


class Meta(TypedDict):
    """The content of `index.json`."""

    format: int
    passages: int
    encoder: str | None
    files: dict[str, int]


def build(
    passages: Iterable[Passage], path: str | Path, *, encoder: str | None = None, progress: bool = False
) -> Index:
    """Build an index of `passages` in the folder `path`: BM25 or, with an `encoder`, dense vectors."""
    path = Path(path)
    if path.exists() and (not path.is_dir() or any(path.iterdir())):
        rule, fix = "an index is built into a new or empty folder", "open it, or remove the folder and build it again"
        raise ConfigError(f"index={path}", rule=rule, fix=fix)
    # An interrupted build leaves nothing that looks like an index.
    with replaced(path) as unfinished:
        if progress:
            from rich.console import Console
            from rich.progress import track

            total = len(passages) if isinstance(passages, Sequence) else None
            passages = track(passages, description="Indexing", total=total, console=Console(stderr=True))
        _write(passages, unfinished, encoder)
    return open_index(path)


def _kind(encoder: str | None) -> tuple[Callable[[Iterable[Passage], Path], int], Callable[[Path], Index]]:
    """Return the functions that write and open an index of this kind."""
    if encoder is None:
        from verl_mas.environment.retrieval.bm25 import Bm25Index, write_bm25

        return write_bm25, Bm25Index
    from verl_mas.environment.retrieval.dense import DenseIndex, write_dense

    return partial(write_dense, encoder=encoder), partial(DenseIndex, encoder=encoder)


def _write(passages: Iterable[Passage], path: Path, encoder: str | None) -> None:
    write, _ = _kind(encoder)
    count = write(passages, path)
    if count == 0:
        fix = "check the file: one JSON object per line, or parquet rows"
        raise DataError("the corpus is empty", rule="an index needs at least one passage", fix=fix)
    meta: Meta = {"format": FORMAT, "passages": count, "encoder": encoder, "files": _sizes(path)}
    (path / META).write_text(json.dumps(meta))


def open_index(path: str | Path) -> Index:
    path = Path(path)
    meta = read_meta(path)
    _, opened = _kind(meta["encoder"])
    index = opened(path)
    if len(index) != meta["passages"]:
        raise _broken(path, f"has {len(index)} of {meta['passages']} passages")
    return index


def read_meta(path: Path) -> Meta:
    """Read the metadata of an index. Refuses an unfinished index, another format, and missing or truncated files."""
    if not (path / META).is_file():
        rule = "an index is a folder that `verl-mas retriever build` has written"
        fix = f"verl-mas retriever build --corpus passages.jsonl --index {path}"
        raise ConfigError(f"index={path}", rule=rule, fix=fix)
    try:
        meta: Meta = json.loads((path / META).read_text(encoding="utf-8"))
    except ValueError as error:
        raise _broken(path, f"has an unreadable {META}: {error}") from error
    if meta.get("format") != FORMAT:
        value = f"index={path} has format {meta.get('format')}"
        raise ConfigError(value, rule=f"this version reads format {FORMAT}", fix="build the index again")
    sizes = _sizes(path)
    for name, size in meta["files"].items():
        if sizes.get(name) != size:
            how = f"has {sizes[name]} of {size} bytes of {name}" if name in sizes else f"lacks {name}"
            raise _broken(path, how)
    return meta


def _sizes(path: Path) -> dict[str, int]:
    """Return the size of each file in bytes, except tantivy's lock files, which may be missing in a copy of an
    index."""
    return {file.name: file.stat().st_size for file in path.iterdir() if not file.name.startswith((".", META))}


def _broken(path: Path, how: str) -> ConfigError:
    rule, fix = "an index is not changed after its build", "remove the folder and build it again"
    return ConfigError(f"index={path} {how}", rule=rule, fix=fix)
