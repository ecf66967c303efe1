"""A dense index: vectors of an e5-class encoder, compared by inner products in a flat faiss index."""

import threading
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import TypeVar

import numpy as np

from verl_mas.config.registry import Extra
from verl_mas.environment.retrieval.corpus import Passage
from verl_mas.errors import ConfigError

faiss = Extra("faiss", "search-dense")
faiss.require()

VECTORS, PASSAGES, OFFSETS = "vectors.faiss", "passages.jsonl", "offsets.npy"
BATCH, MAX_TOKENS = 64, 256
T = TypeVar("T")


class Encoder:
    """Encodes texts as vectors of unit length by mean pooling. Texts get the prefixes with which e5 was trained."""

    def __init__(self, name: str):
        import torch
        from transformers import AutoModel, AutoTokenizer

        self._torch = torch
        self._device = "cuda" if torch.cuda.is_available() else "cpu"
        try:
            self._tokenizer = AutoTokenizer.from_pretrained(name)
            self._model = AutoModel.from_pretrained(name).to(self._device).eval()
        except (OSError, ValueError) as error:  # no such model, no network, or an incomplete folder
            value = f"--encoder {name} cannot be loaded: {str(error).partition(chr(10))[0]}"
            rule = "it is the folder of a model, or the name of one on a Hugging Face hub that answers"
            raise ConfigError(value, rule=rule, fix="correct the name, check the network, or give a folder") from error

    def encode(self, texts: Sequence[str], prefix: str) -> np.ndarray:
        with self._torch.inference_mode():
            texts = [prefix + text for text in texts]
            shape = {"padding": True, "truncation": True, "max_length": MAX_TOKENS}
            inputs = self._tokenizer(texts, **shape, return_tensors="pt").to(self._device)
            states = self._model(**inputs).last_hidden_state.float()
            mask = inputs["attention_mask"][..., None]
            mean = (states * mask).sum(1) / mask.sum(1)
            return self._torch.nn.functional.normalize(mean, dim=-1).cpu().numpy()


def write_dense(passages: Iterable[Passage], path: Path, encoder: str) -> int:
    """Write an index; return the number of passages."""
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
