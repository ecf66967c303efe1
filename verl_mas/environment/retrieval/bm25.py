"""A BM25 index by tantivy. It is memory-mapped, and stores the passages next to the postings. Searches release the
interpreter lock."""

from collections.abc import Iterable, Sequence
from pathlib import Path

from verl_mas.config.registry import Extra
from verl_mas.environment.retrieval.corpus import Passage
from verl_mas.errors import DiskError
from verl_mas.run_folder.disk import free_space

tantivy = Extra("tantivy", "search")
tantivy.require()

BODY, SOURCE = "body", "source"
ANALYZER = "en_stem"
# Maximum number of terms of a query. Models also write longer queries, but further terms cost time and find nothing
# more, so they are ignored.
MAX_TERMS = 64
HEAP_BYTES = 256_000_000


def write_bm25(passages: Iterable[Passage], path: Path) -> int:
    """Write an index; return the number of passages."""
    number = 0
    try:
        # One thread gives the same index, including the order of ties, for the same corpus. The block commits and ends
        # the writer's threads, even after an exception.
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
