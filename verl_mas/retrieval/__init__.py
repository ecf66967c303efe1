"""Retrieval of passages: an index, a server with Search-R1's `/retrieve` protocol, and an async client."""

from verl_mas.retrieval.client import RetrieverClient, SearchResult, check_reachable, retriever
from verl_mas.retrieval.corpus import Passage, read_corpus

__all__ = ["Passage", "RetrieverClient", "SearchResult", "check_reachable", "read_corpus", "retriever"]
