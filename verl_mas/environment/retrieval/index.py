"""Indexes of passages: BM25 by tantivy, and dense vectors by faiss. An index is built once into a folder, and then
memory-mapped from it."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Annotated, TypeAlias, TypedDict, TypeVar

from verl_mas.config.registry import Extra
from verl_mas.config.values import Range
from verl_mas.environment.retrieval.corpus import Passage
from verl_mas.errors import ConfigError, DataError, DiskError
from verl_mas.run_folder.disk import free_space, replaced
from verl_mas.util.later import np, torch

tantivy, faiss = Extra("tantivy", "search"), Extra("faiss", "search-dense")
META = "index.json"
FORMAT = 2
MAX_TOPK = 100
TopK = Annotated[int, Range(1, MAX_TOPK)]  # passages per query
BODY, SOURCE = "body", "source"
ANALYZER = "en_stem"
# Maximum number of terms of a query. Models also write longer queries, but further terms cost time and find nothing
# more, so they are ignored.
MAX_TERMS = 64
HEAP_BYTES = 256_000_000
VECTORS, PASSAGES, OFFSETS = "vectors.faiss", "passages.jsonl", "offsets.npy"
BATCH, MAX_TOKENS = 64, 256
T = TypeVar("T")


def write_bm25(passages: Iterable[Passage], path: Path) -> int:
    """Write an index; return the number of passages."""
    number = 0
    try:
        # Use one thread, so that the same corpus gives the same index, including the order of ties. The `with` block
        # commits and ends the writer's threads, even after an exception.
        with tantivy.Index(_schema(), path=str(path)).writer(heap_size=HEAP_BYTES, num_threads=1) as writer:
            for number, passage in enumerate(passages, 1):  # noqa: B007
                writer.add_document(tantivy.Document(body=f"{passage.title}\n{passage.text}", source=passage.to_json()))
        # If the disk is full, the writer of tantivy 0.27 may commit without the passages and without an error.
        if (there := tantivy.Index.open(str(path)).searcher().num_docs) != number:
            raise ValueError(f"IO error: it has {there} of {number} passages")
    except ValueError as error:
        if "IO error" not in str(error):
            raise
        value = f"the index cannot be written: {error}; {free_space(path.parent)}"
        raise DiskError(value, rule="an index is written as a whole", fix="make room, or use another disk") from error
    return number


class Bm25Index:
    def __init__(self, path: Path):
        self._index = tantivy.Index.open(str(path))
        self._schema = self._index.schema
        self._searcher = self._index.searcher()
        self._analyzer = (
            tantivy.TextAnalyzerBuilder(tantivy.Tokenizer.simple())
            .filter(tantivy.Filter.remove_long(40))
            .filter(tantivy.Filter.lowercase())
            .filter(tantivy.Filter.stemmer("english"))
            .build()
        )

    def __len__(self) -> int:
        return int(self._searcher.num_docs)

    def search(self, queries: Sequence[str], k: int) -> list[list[Passage]]:
        return [self._search(query, k) for query in queries]

    def terms(self, query: str) -> list[str]:
        """Return the distinct terms of a query. There is no query syntax, so a colon has no special meaning."""
        return list(dict.fromkeys(self._analyzer.analyze(query)))[:MAX_TERMS]

    def _search(self, query: str, k: int) -> list[Passage]:
        terms = self.terms(query)
        if not terms:
            return []
        any_term = tantivy.Query.boolean_query(
            [(tantivy.Occur.Should, tantivy.Query.term_query(self._schema, BODY, term)) for term in terms]
        )
        hits = self._searcher.search(any_term, limit=k, count=False).hits
        return [Passage.from_json(bytes(self._searcher.doc(place)[SOURCE][0]), score) for score, place in hits]


def _schema() -> object:
    builder = tantivy.SchemaBuilder()
    # Store frequencies without positions, because there are no phrase queries.
    builder.add_text_field(BODY, stored=False, tokenizer_name=ANALYZER, index_option="freq")
    builder.add_bytes_field(SOURCE, stored=True, indexed=False)
    return builder.build()


class Encoder:
    """Encodes texts as vectors of unit length by mean pooling. Texts get the prefixes with which e5 was trained."""

    def __init__(self, name: str):
        from transformers import AutoModel, AutoTokenizer

        self._device = "cuda" if torch.cuda.is_available() else "cpu"
        try:
            self._tokenizer = AutoTokenizer.from_pretrained(name)
            self._model = AutoModel.from_pretrained(name).to(self._device).eval()
        except (OSError, ValueError) as error:  # no such model, no network, or an incomplete folder
            value = f"--encoder {name} cannot be loaded: {str(error).partition(chr(10))[0]}"
            rule = "it is the folder of a model, or the name of one on a Hugging Face hub that answers"
            raise ConfigError(value, rule=rule, fix="correct the name, check the network, or give a folder") from error

    def encode(self, texts: Sequence[str], prefix: str) -> np.ndarray:
        with torch.inference_mode():
            texts = [prefix + text for text in texts]
            shape = {"padding": True, "truncation": True, "max_length": MAX_TOKENS}
            inputs = self._tokenizer(texts, **shape, return_tensors="pt").to(self._device)
            states = self._model(**inputs).last_hidden_state.float()
            mask = inputs["attention_mask"][..., None]
            mean = (states * mask).sum(1) / mask.sum(1)
            return torch.nn.functional.normalize(mean, dim=-1).cpu().numpy()


def write_dense(passages: Iterable[Passage], path: Path, encoder: str) -> int:
    """Write an index; return the number of passages."""
    faiss.require()
    model, index, offsets = Encoder(encoder), None, [0]
    with open(path / PASSAGES, "wb") as file:
        for batch in _batches(passages):
            vectors = model.encode([f"{p.title}\n{p.text}" if p.title else p.text for p in batch], "passage: ")
            index = index or faiss.IndexFlatIP(vectors.shape[1])
            index.add(vectors)
            for passage in batch:
                file.write(passage.to_json() + b"\n")
                offsets.append(file.tell())
    if index is not None:
        faiss.write_index(index, str(path / VECTORS))
        np.save(path / OFFSETS, np.array(offsets))
    return len(offsets) - 1


class DenseIndex:
    def __init__(self, path: Path, encoder: str):
        # IO_FLAG_MMAP maps only inverted lists; it would read a flat index into memory.
        self._index = faiss.read_index(str(path / VECTORS), faiss.IO_FLAG_MMAP_IFC)
        self._offsets = np.load(path / OFFSETS, mmap_mode="r")
        self._passages = np.memmap(path / PASSAGES, mode="r", dtype=np.uint8)
        self._encoder = Encoder(encoder)
        self._one_at_a_time = threading.Lock()

    def __len__(self) -> int:
        return int(self._index.ntotal)

    def search(self, queries: Sequence[str], k: int) -> list[list[Passage]]:
        if not queries:
            return []
        # Encode in batches, because a request may have thousands of queries.
        with self._one_at_a_time:
            vectors = np.concatenate([self._encoder.encode(batch, "query: ") for batch in _batches(queries)])
        scores, rows = self._index.search(vectors, min(k, len(self)))
        return [
            [Passage.from_json(self._line(row), float(score)) for row, score in zip(*hits, strict=True)]
            for hits in zip(rows, scores, strict=True)
        ]

    def _line(self, number: int) -> bytes:
        return self._passages[self._offsets[number] : self._offsets[number + 1]].tobytes()


def _batches(items: Iterable[T]) -> Iterator[list[T]]:
    iterator = iter(items)
    while batch := list(islice(iterator, BATCH)):
        yield batch


# Both kinds of index are thread-safe.
Index: TypeAlias = Bm25Index | DenseIndex


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


def _write(passages: Iterable[Passage], path: Path, encoder: str | None) -> None:
    count = write_bm25(passages, path) if encoder is None else write_dense(passages, path, encoder)
    if count == 0:
        fix = "check the file: one JSON object per line, or parquet rows"
        raise DataError("the corpus is empty", rule="an index needs at least one passage", fix=fix)
    meta: Meta = {"format": FORMAT, "passages": count, "encoder": encoder, "files": _sizes(path)}
    (path / META).write_text(json.dumps(meta))


def open_index(path: str | Path) -> Index:
    path = Path(path)
    meta = read_meta(path)
    index: Index = Bm25Index(path) if meta["encoder"] is None else DenseIndex(path, meta["encoder"])
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
    """Return the size of each file in bytes, without `index.json`, and without tantivy's lock files, which a copy of an
    index may lack."""
    return {file.name: file.stat().st_size for file in path.iterdir() if not file.name.startswith((".", META))}


def _broken(path: Path, how: str) -> ConfigError:
    rule, fix = "an index is not changed after its build", "remove the folder and build it again"
    return ConfigError(f"index={path} {how}", rule=rule, fix=fix)
