"""Retrieval of passages: an index, a server with Search-R1's `/retrieve` protocol, and an async client."""
